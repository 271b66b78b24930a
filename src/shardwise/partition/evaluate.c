/* The time of a partition: the longest path through the actions of a fixed order.

   The order of work never changes while layers move, so the actions are sorted once (producers first) and every
   partition is one pass over them: the recursion of the simulator, without its bookkeeping. Index 0 is "nothing",
   which ends at 0. The Python twin is `longest_slowly` in graph.py; both do the same operations in the same order. */

typedef struct {
    int actions;
    const int *before;      /* per action: the one before it on its rank */
    const int *input;       /* the one whose output it needs */
    const int *stream;      /* kind * chunks + chunk */
    const double *hop;      /* time of the message in between */
} Graph;

static double longest(const Graph *g, const double *duration, double *end) {
    double last = 0.0;
    end[0] = 0.0;
    for (int k = 1; k <= g->actions; k++) {
        double begin = end[g->before[k]], ready = end[g->input[k]] + g->hop[k];
        if (ready > begin) begin = ready;
        begin += duration[g->stream[k]];
        end[k] = begin;
        if (begin > last) last = begin;
    }
    return last;
}

void longest_many(const Graph *g, int count, int streams, const double *duration, double *end, double *out) {
    for (int k = 0; k < count; k++) out[k] = longest(g, duration + (long long)k * streams, end);
}

/* How often each stream is on the path that ends last, once `end` is known; `lag` gets its messages. */
static void follow(const Graph *g, const double *end, double last, double *on_path, double *lag) {
    int k = g->actions;
    while (k > 0 && end[k] != last) k--;
    *lag = 0.0;
    while (k > 0) {
        double before = end[g->before[k]], ready = end[g->input[k]] + g->hop[k];
        on_path[g->stream[k]] += 1.0;
        if (ready > before) *lag += g->hop[k];
        k = ready > before ? g->input[k] : g->before[k];
    }
}

double critical(const Graph *g, const double *duration, double *end, double *on_path, double *lag) {
    double last = longest(g, duration, end);
    follow(g, end, last, on_path, lag);
    return last;
}
