/* Annealing on the simulated time itself: layers change their choice, move to another chunk, or two chunks trade.

   What does not fit is passed through at a fine that grows; only what fits is kept. A move is answered by a path that is
   known to make it too slow, or by one longest path.
   The tests hold it to a Python twin, improve_slowly.py; both draw the same random numbers and do the same operations in the same
   order. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "evaluate.c"

typedef struct {
    Graph graph;
    int chunks, options, ranks, rows;
    const int *run_of;              /* per option */
    const int *rank_of;             /* per chunk */
    const int *least;               /* per chunk: fewest layers */
    const double *time;             /* per kind and option */
    const double *held, *static_;     /* per option: activation, static memory */
    const double *fixed_time;       /* per kind and chunk */
    const double *fixed_held;       /* per chunk */
    const double *fixed_static;      /* per rank */
    const double *row;              /* rows x chunks: micro batches in flight */
    const int *first_row;           /* per rank + 1 */
    const double *limit;            /* per rank */
} Task;

#define PATHS 32                    /* longest paths that are remembered */
#define HEAVY 10.0                  /* the fine at last: what a rank twice over its limit costs, as a share of the time */

typedef struct {
    int *counts;                    /* chunks x options */
    double *duration, *held;        /* kinds x chunks; chunks */
    unsigned long long seed;
    double *end;
    int *changed, changes;          /* chunks that a move touches, in the order it does */
    char *touched;
    int *old_counts;                /* of the touched chunks before the move */
    double *old_duration;
    double *on_path, *length;       /* PATHS x kinds x chunks; their lengths before the move */
    int paths, next;
    double *excess, *old_excess;    /* per rank: what it is over its limit */
} State;

static unsigned long long draw(State *s) {      /* splitmix64 */
    unsigned long long z = (s->seed += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static int below(State *s, int n) { return (int)((draw(s) >> 33) % (unsigned long long)n); }

static double unit(State *s) { return ((double)(draw(s) >> 11) + 0.5) * 0x1.0p-53; }      /* never 0 */

static void settle(const Task *t, State *s, int c) {
    const int *x = s->counts + c * t->options;
    for (int kind = 0; kind < 4; kind++) {
        double sum = t->fixed_time[kind * t->chunks + c];
        for (int o = 0; o < t->options; o++) sum += x[o] * t->time[kind * t->options + o];
        s->duration[kind * t->chunks + c] = sum;
    }
    double sum = t->fixed_held[c];
    for (int o = 0; o < t->options; o++) sum += x[o] * t->held[o];
    s->held[c] = sum;
}

static void put(const Task *t, State *s, int c, int option, int by) {
    if (!s->touched[c]) {
        s->touched[c] = 1;
        s->changed[s->changes++] = c;
        memcpy(s->old_counts + c * t->options, s->counts + c * t->options, t->options * sizeof(int));
        for (int kind = 0; kind < 4; kind++) s->old_duration[kind * t->chunks + c] = s->duration[kind * t->chunks + c];
    }
    s->counts[c * t->options + option] += by;
}

/* The share of its limit by which a rank is over. */
static double over(const Task *t, const State *s, int rank) {
    double base = t->fixed_static[rank], most = 0.0, limit = t->limit[rank];
    if (isinf(limit)) return 0.0;
    for (int c = 0; c < t->chunks; c++) {
        if (t->rank_of[c] != rank) continue;
        for (int o = 0; o < t->options; o++) base += s->counts[c * t->options + o] * t->static_[o];
    }
    for (int k = t->first_row[rank]; k < t->first_row[rank + 1]; k++) {
        double level = base;
        for (int c = 0; c < t->chunks; c++)
            if (t->rank_of[c] == rank) level += t->row[k * t->chunks + c] * s->held[c];
        if (level > most) most = level;
    }
    return most > limit ? most / limit - 1.0 : 0.0;
}

static int layers(const Task *t, const State *s, int c) {
    int sum = 0;
    for (int o = 0; o < t->options; o++) sum += s->counts[c * t->options + o];
    return sum;
}

/* A random option of those that chunk c uses, of one run or (run < 0) of any; -1: none. */
static int used(const Task *t, State *s, int c, int run) {
    const int *x = s->counts + c * t->options;
    int n = 0;
    for (int o = 0; o < t->options; o++) n += x[o] > 0 && (run < 0 || t->run_of[o] == run);
    if (!n) return -1;
    n = below(s, n);
    for (int o = 0; o < t->options; o++)
        if (x[o] > 0 && (run < 0 || t->run_of[o] == run) && n-- == 0) return o;
    return -1;
}

/* Another random option of the same run, or the same where there is no other. */
static int other(const Task *t, State *s, int option) {
    int n = 0;
    for (int o = 0; o < t->options; o++) n += o != option && t->run_of[o] == t->run_of[option];
    if (!n) return option;
    n = below(s, n);
    for (int o = 0; o < t->options; o++)
        if (o != option && t->run_of[o] == t->run_of[option] && n-- == 0) return o;
    return option;
}

/* The run of a chunk's last (step 1) or first (step -1) layer; -1: empty. */
static int edge_run(const Task *t, const State *s, int c, int step) {
    const int *x = s->counts + c * t->options;
    int found = -1;
    for (int o = 0; o < t->options; o++)
        if (x[o] > 0) { found = t->run_of[o]; if (step < 0) return found; }
    return found;
}

/* Moves one layer from chunk a to chunk b, the chunks between handing one on; 0: cannot be. */
static int shift(const Task *t, State *s, int a, int b) {
    int step = b > a ? 1 : -1, carried = -1;
    if (layers(t, s, a) <= t->least[a]) return 0;
    for (int c = a; c != b; c += step) {
        int run = edge_run(t, s, c, step);
        if (run < 0) return 0;
        int given = carried >= 0 && t->run_of[carried] == run ? carried : used(t, s, c, run);
        put(t, s, c, given, -1);
        int taken = c + step == b && below(s, 2) ? other(t, s, given) : given;
        put(t, s, c + step, taken, 1);
        carried = given;
    }
    return 1;
}

static int change(const Task *t, State *s, int c) {
    int from = used(t, s, c, -1);
    if (from < 0) return 0;
    int to = other(t, s, from);
    put(t, s, c, from, -1);
    put(t, s, c, to, 1);
    return to != from;
}

/* Another chunk of the same rank, or c itself where there is none. */
static int neighbour(const Task *t, State *s, int c) {
    int n = 0;
    for (int k = 0; k < t->chunks; k++) n += k != c && t->rank_of[k] == t->rank_of[c];
    if (!n) return c;
    n = below(s, n);
    for (int k = 0; k < t->chunks; k++)
        if (k != c && t->rank_of[k] == t->rank_of[c] && n-- == 0) return k;
    return c;
}

/* Half of the moves stay on one rank, where what one chunk gives up another can take. */
static int move(const Task *t, State *s) {
    int kind = below(s, 10), a = below(s, t->chunks), b = kind < 5 ? neighbour(t, s, a) : below(s, t->chunks);
    if (a == b || kind == 0 || kind == 5) return change(t, s, a);
    if (kind <= 2) return change(t, s, a) && change(t, s, b);
    if (kind == 3) return shift(t, s, a, b);
    if (kind == 4) return shift(t, s, a, b) && change(t, s, a);
    if (kind == 6) return change(t, s, a) && change(t, s, b);
    if (kind == 7) return shift(t, s, a, b) && change(t, s, b);
    if (kind == 8) return shift(t, s, a, b) && change(t, s, neighbour(t, s, b));
    return shift(t, s, a, b);
}

/* Settles the chunks that a move changed, and forgets those it only handed layers through; 0: nothing changed. */
static int settled(const Task *t, State *s) {
    size_t row = t->options * sizeof(int);
    int kept = 0;
    for (int k = 0; k < s->changes; k++) {
        int c = s->changed[k];
        if (memcmp(s->old_counts + c * t->options, s->counts + c * t->options, row)) s->changed[kept++] = c;
        else s->touched[c] = 0;
    }
    s->changes = kept;
    memcpy(s->old_excess, s->excess, t->ranks * sizeof(double));
    for (int k = 0; k < kept; k++) settle(t, s, s->changed[k]);
    for (int k = 0; k < kept; k++) s->excess[t->rank_of[s->changed[k]]] = over(t, s, t->rank_of[s->changed[k]]);
    return kept > 0;
}

/* What a move adds to a path. */
static double longer(const Task *t, const State *s, const double *on_path) {
    double sum = 0.0;
    for (int k = 0; k < s->changes; k++)
        for (int kind = 0; kind < 4; kind++) {
            int stream = kind * t->chunks + s->changed[k];
            sum += on_path[stream] * (s->duration[stream] - s->old_duration[stream]);
        }
    return sum;
}

/* Whether a path that is known makes the move too slow: most moves need no look at all actions. */
static int hopeless(const Task *t, State *s, double most) {
    size_t streams = 4 * (size_t)t->chunks;
    for (int p = 0; p < s->paths; p++) {
        if (s->length[p] + longer(t, s, s->on_path + p * streams) <= most) continue;
        int q = p / 2;              /* paths that help move to the front */
        double *a = s->on_path + p * streams, *b = s->on_path + q * streams, length = s->length[p];
        s->length[p] = s->length[q];
        s->length[q] = length;
        for (size_t k = 0; k < streams; k++) { double x = a[k]; a[k] = b[k]; b[k] = x; }
        return 1;
    }
    return 0;
}

/* Remembers the path that made a move too slow. */
static void remember(const Task *t, State *s, double value) {
    int p = s->paths < PATHS ? s->paths++ : PATHS / 2 + s->next++ % (PATHS / 2);
    double *on_path = s->on_path + p * 4 * (size_t)t->chunks, lag;
    memset(on_path, 0, 4 * t->chunks * sizeof(double));
    follow(&t->graph, s->end, value, on_path, &lag);
    s->length[p] = value - longer(t, s, on_path);
}

static void keep(const Task *t, State *s) {
    for (int p = 0; p < s->paths; p++) s->length[p] += longer(t, s, s->on_path + p * 4 * (size_t)t->chunks);
}

static void undo(const Task *t, State *s) {
    for (int k = 0; k < s->changes; k++) {
        int c = s->changed[k];
        memcpy(s->counts + c * t->options, s->old_counts + c * t->options, t->options * sizeof(int));
        settle(t, s, c);
    }
}

static void forget(State *s) {
    for (int k = 0; k < s->changes; k++) s->touched[s->changed[k]] = 0;
    s->changes = 0;
}

static double excess(const Task *t, const State *s) {
    double sum = 0.0;
    for (int rank = 0; rank < t->ranks; rank++) sum += s->excess[rank];
    return sum;
}

/* One step at a temperature, memory above the limits fined. Returns the time after it. */
static double step(const Task *t, State *s, double now, double heat, double fine, double *over_all, long long *looked) {
    int moved = move(t, s), changed = moved && settled(t, s), ok = changed;
    double value = now, excess_now = 0.0;
    if (ok) {
        excess_now = excess(t, s);
        double most = now - heat * log(unit(s)) + fine * (*over_all - excess_now);
        ++*looked;
        ok = !hopeless(t, s, most + 1e-9 * now);
        if (ok) {
            value = longest(&t->graph, s->duration, s->end);
            ok = value <= most;
            if (!ok) remember(t, s, value);
        }
    }
    if (ok) {
        keep(t, s);
        *over_all = excess_now;
    } else {
        if (moved) memcpy(s->excess, s->old_excess, t->ranks * sizeof(double));
        undo(t, s);
    }
    forget(s);
    return ok ? value : now;
}

/* counts: the start, which fits, then the best that fits. Returns its time. `light`: the fine at first; `looked` counts
   the moves that were judged by their time. */
double improve(const Task *t, int *counts, long long steps, double hot, double cold, unsigned long long seed,
               double goal, double light, long long *looked) {
    size_t chunks = t->chunks, cells = chunks * t->options, size = cells * sizeof(int), streams = 4 * chunks;
    size_t numbers = 2 * streams + chunks + (streams + 1) * PATHS + t->graph.actions + 1 + 2 * t->ranks;
    State s = {.seed = seed, .counts = malloc(2 * size), .changed = malloc(chunks * sizeof(int)),
               .touched = calloc(chunks, 1), .duration = calloc(numbers, sizeof(double))};
    s.old_counts = s.counts + cells;
    s.old_duration = s.duration + streams;
    s.held = s.old_duration + streams;
    s.on_path = s.held + chunks;
    s.length = s.on_path + streams * PATHS;
    s.end = s.length + PATHS;
    s.excess = s.end + t->graph.actions + 1;
    s.old_excess = s.excess + t->ranks;
    memcpy(s.counts, counts, size);
    for (int c = 0; c < t->chunks; c++) settle(t, &s, c);
    double now = longest(&t->graph, s.duration, s.end), best = now, over_all = 0.0;
    double heat = hot, cooling = steps > 1 ? pow(cold / hot, 1.0 / (double)(steps - 1)) : 1.0;
    double fine = light * now, dearer = steps > 1 ? pow(HEAVY / light, 1.0 / (double)(steps - 1)) : 1.0;
    *looked = 1;
    for (long long k = 0; k < steps && best > goal; k++, heat *= cooling, fine *= dearer) {
        now = step(t, &s, now, heat, fine, &over_all, looked);
        if (now < best && over_all == 0.0) { best = now; memcpy(counts, s.counts, size); }
    }
    free(s.counts); free(s.duration); free(s.changed); free(s.touched);
    return best;
}
