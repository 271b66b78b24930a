/* Annealing on the simulated time itself: layers change their choice, move to another chunk, or two chunks trade.

   Every state fits in memory; every move is answered by one longest path. The Python twin is improve_slowly.py; both
   draw the same random numbers and do the same operations in the same order. */

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
    const double *held, *stock;     /* per option: activation, static memory */
    const double *fixed_time;       /* per kind and chunk */
    const double *fixed_held;       /* per chunk */
    const double *fixed_stock;      /* per rank */
    const double *row;              /* rows x chunks: micro batches in flight */
    const int *first_row;           /* per rank + 1 */
    const double *limit;            /* per rank */
} Task;

typedef struct {
    int *counts;                    /* chunks x options */
    double *duration, *held;
    unsigned long long seed;
    double *end;
} State;

static unsigned long long draw(State *s) {      /* splitmix64 */
    unsigned long long z = (s->seed += 0x9E3779B97F4A7C15ULL);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    return z ^ (z >> 31);
}

static int below(State *s, int n) { return (int)((draw(s) >> 33) % (unsigned long long)n); }

static double unit(State *s) { return (double)(draw(s) >> 11) * 0x1.0p-53; }

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

static int fits(const Task *t, const State *s, int rank) {
    double stock = t->fixed_stock[rank];
    for (int c = 0; c < t->chunks; c++) {
        if (t->rank_of[c] != rank) continue;
        for (int o = 0; o < t->options; o++) stock += s->counts[c * t->options + o] * t->stock[o];
    }
    for (int k = t->first_row[rank]; k < t->first_row[rank + 1]; k++) {
        double level = stock;
        for (int c = 0; c < t->chunks; c++)
            if (t->rank_of[c] == rank) level += t->row[k * t->chunks + c] * s->held[c];
        if (level > t->limit[rank]) return 0;
    }
    return 1;
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
        s->counts[c * t->options + given]--;
        if (c + step == b && below(s, 2)) {
            s->counts[b * t->options + other(t, s, given)]++;
        } else {
            s->counts[(c + step) * t->options + given]++;
        }
        carried = given;
    }
    return 1;
}

static int change(const Task *t, State *s, int c) {
    int from = used(t, s, c, -1);
    if (from < 0) return 0;
    int to = other(t, s, from);
    s->counts[c * t->options + from]--;
    s->counts[c * t->options + to]++;
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

/* Settles what differs from `before`; 0: some rank does not fit. */
static int settled(const Task *t, State *s, const int *before) {
    int ok = 1;
    for (int c = 0; c < t->chunks; c++)
        if (memcmp(before + c * t->options, s->counts + c * t->options, t->options * sizeof(int))) settle(t, s, c);
    for (int c = 0; ok && c < t->chunks; c++)
        if (memcmp(before + c * t->options, s->counts + c * t->options, t->options * sizeof(int)))
            ok = fits(t, s, t->rank_of[c]);
    return ok;
}

/* counts: the start, then the best. Returns the best time; `looked` counts the longest paths computed. */
double improve(const Task *t, int *counts, long long steps, double hot, double cold, unsigned long long seed,
               double goal, long long *looked) {
    size_t cells = (size_t)t->chunks * t->options, size = cells * sizeof(int);
    State s = {malloc(size), malloc(4 * t->chunks * sizeof(double)), malloc(t->chunks * sizeof(double)), seed,
               malloc((t->graph.actions + 1) * sizeof(double))};
    int *before = malloc(size);
    memcpy(s.counts, counts, size);
    for (int c = 0; c < t->chunks; c++) settle(t, &s, c);
    double now = longest(&t->graph, s.duration, s.end), best = now;
    double heat = hot, cooling = steps > 1 ? pow(cold / hot, 1.0 / (double)(steps - 1)) : 1.0;
    *looked = 1;
    for (long long k = 0; k < steps && best > goal; k++, heat *= cooling) {
        memcpy(before, s.counts, size);
        int ok = move(t, &s) && settled(t, &s, before);
        double value = 0.0;
        if (ok) {
            value = longest(&t->graph, s.duration, s.end);
            ++*looked;
            ok = value <= now || unit(&s) < exp((now - value) / heat);
        }
        if (!ok) {
            for (int c = 0; c < t->chunks; c++) {
                size_t at = (size_t)c * t->options;
                if (!memcmp(before + at, s.counts + at, t->options * sizeof(int))) continue;
                memcpy(s.counts + at, before + at, t->options * sizeof(int));
                settle(t, &s, c);
            }
            continue;
        }
        now = value;
        if (now < best) { best = now; memcpy(counts, s.counts, size); }
    }
    free(s.counts); free(s.duration); free(s.held); free(s.end); free(before);
    return best;
}
