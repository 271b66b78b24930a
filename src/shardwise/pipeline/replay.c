/* Replays a schedule: every rank runs its row in order, an action starts when its rank is free and its input is there.

   An action's code is (kind * chunks + chunk) * micro batches + micro batch; kinds: 0 F, 1 I, 2 W, 3 B (I and W in
   one). A forward and the backward after it (B, or I and W) may run together: they start when both inputs are there,
   and their results leave when both are done. The Python twin is engine.py's; both must do the same operations in the
   same order. */

#include <stdlib.h>

typedef struct {
    int ranks, chunks, microbatches, contention, each;
    const int *rank_of;                 /* per chunk */
    const long long *offset;            /* per rank + 1: where its row begins in codes */
    const long long *codes;
    const double *duration;             /* per kind and chunk; with `each`, per code: micro batches differ */
    const double *latency, *transfer;   /* between chunk c and c + 1 */
    const double *pair;                 /* per place: time of the pair that begins there, or -1; NULL: no pairs */
} Replay;

typedef struct {
    double *arrival;                    /* 0..n-1: input of forward, n..2n-1: of backward, by chunk and micro batch */
    double *link;                       /* when the link from rank a to rank b is free again */
    long long *next;                    /* per rank: index of its next action */
    long long *waits;                   /* per rank: arrival slot it waits for, or -1 */
    double *clock;                      /* per rank */
    int *stack;
} State;

static double delivered(const Replay *p, State *s, int from, int to, int edge, double end) {
    if (from == to) return end;
    if (!p->contention) return end + p->latency[edge] + p->transfer[edge];
    double *free_at = &s->link[from * p->ranks + to];
    double begin = *free_at > end ? *free_at : end;
    *free_at = begin + p->transfer[edge];
    return *free_at + p->latency[edge];
}

static inline double lasts(const Replay *p, long long code) {
    return p->duration[p->each ? code : code / p->microbatches];
}

/* Slot that an action's output feeds, or -1; its arrival is set. */
static long long send(const Replay *p, State *s, int kind, int chunk, int microbatch, double end) {
    long long cells = (long long)p->chunks * p->microbatches, slot;
    int to = kind == 0 ? chunk + 1 : chunk - 1;
    if (kind == 2 || to < 0) return -1;
    if (to == p->chunks) {              /* the loss: the last chunk's backward follows its forward */
        slot = cells + (long long)chunk * p->microbatches + microbatch;
        s->arrival[slot] = end;
        return slot;
    }
    slot = (kind == 0 ? 0 : cells) + (long long)to * p->microbatches + microbatch;
    s->arrival[slot] = delivered(p, s, p->rank_of[chunk], p->rank_of[to], kind == 0 ? chunk : to, end);
    return slot;
}

/* Sends a result; the rank that waits for it goes on. */
static inline void hand_on(const Replay *p, State *s, int r, int kind, int chunk, int m, double end, int *depth) {
    long long fed = send(p, s, kind, chunk, m, end);
    if (fed < 0) return;
    int other = p->rank_of[kind == 0 ? (chunk + 1 < p->chunks ? chunk + 1 : chunk) : chunk - 1];
    if (other != r && s->waits[other] == fed) { s->waits[other] = -1; s->stack[(*depth)++] = other; }
}

/* Runs the pair at place k of rank r: a forward and B, or I and W. Returns its places; 0: an input is missing. */
static int run_pair(const Replay *p, State *s, int r, long long k, double *start, double *end, signed char *cause,
                    int *depth) {
    long long cells = (long long)p->chunks * p->microbatches, slot[3];
    int count = p->codes[k + 1] / cells == 1 ? 3 : 2;
    double begin = s->clock[r], alone = 0, share = 1, at;
    for (int j = 0; j < count; j++) {
        long long code = p->codes[k + j], kind = code / cells;
        slot[j] = kind == 2 ? -1 : (kind == 0 ? 0 : cells) + code % cells;
        if (slot[j] >= 0 && s->arrival[slot[j]] < 0) { s->waits[r] = slot[j]; return 0; }
        if (slot[j] >= 0 && s->arrival[slot[j]] > begin) begin = s->arrival[slot[j]];
        alone += lasts(p, code);
    }
    if (alone) share = p->pair[k] / alone;
    at = begin;
    for (int j = 0; j < count; j++) {
        int late = begin > s->clock[r] && slot[j] >= 0 && s->arrival[slot[j]] == begin;
        cause[k + j] = late ? 2 : k + j > p->offset[r];
        start[k + j] = at;
        end[k + j] = at = at + share * lasts(p, p->codes[k + j]);
    }
    s->clock[r] = at;
    for (int j = 0; j < count; j++) {
        int m = (int)(p->codes[k + j] % p->microbatches), stream = (int)(p->codes[k + j] / p->microbatches);
        hand_on(p, s, r, stream / p->chunks, stream % p->chunks, m, at, depth);
    }
    return count;
}

/* Runs rank r as far as its inputs allow; returns the number of actions run. */
static inline long long advance(const Replay *p, const double *pair, State *s, int r, double *start, double *end,
                                signed char *cause, int *depth) {
    long long cells = (long long)p->chunks * p->microbatches, k = s->next[r], first = k, last = p->offset[r + 1];
    for (; k < last; k++) {
        if (pair && pair[k] >= 0) {
            int count = run_pair(p, s, r, k, start, end, cause, depth);
            if (!count) break;
            k += count - 1;
            continue;
        }
        long long code = p->codes[k], slot = -1;
        int m = (int)(code % p->microbatches), stream = (int)(code / p->microbatches);
        int kind = stream / p->chunks, chunk = stream % p->chunks;
        double begin = s->clock[r];
        signed char why = k > p->offset[r];
        if (kind != 2) slot = (kind == 0 ? 0 : cells) + (long long)chunk * p->microbatches + m;
        if (slot >= 0) {
            double ready = s->arrival[slot];
            if (ready < 0) { s->waits[r] = slot; break; }
            if (ready > begin) { begin = ready; why = 2; }
        }
        start[k] = begin;
        cause[k] = why;
        end[k] = s->clock[r] = begin + p->duration[p->each ? code : stream];
        hand_on(p, s, r, kind, chunk, m, end[k], depth);
    }
    s->next[r] = k;
    return k - first;
}

/* Returns the number of actions that could run; fewer than given: the rows wait for each other.
   next[r] is left at the action where rank r stopped. */
long long replay(const Replay *p, long long *next, double *start, double *end, signed char *cause) {
    long long cells = (long long)p->chunks * p->microbatches, done = 0;
    State s = {malloc(2 * cells * sizeof(double)), calloc((size_t)p->ranks * p->ranks, sizeof(double)), next,
               malloc(p->ranks * sizeof(long long)), calloc(p->ranks, sizeof(double)), malloc(p->ranks * sizeof(int))};
    int depth = 0;
    for (long long k = 0; k < 2 * cells; k++) s.arrival[k] = -1;
    for (int m = 0; m < p->microbatches; m++) s.arrival[m] = 0;   /* the data of chunk 0 */
    for (int r = p->ranks - 1; r >= 0; r--) {
        next[r] = p->offset[r];
        s.waits[r] = -1;
        s.stack[depth++] = r;
    }
    if (p->pair)
        while (depth) { int r = s.stack[--depth]; done += advance(p, p->pair, &s, r, start, end, cause, &depth); }
    else  /* compiled apart: most orders have none, and the look at every place would cost a seventh */
        while (depth) { int r = s.stack[--depth]; done += advance(p, NULL, &s, r, start, end, cause, &depth); }
    free(s.arrival); free(s.link); free(s.waits); free(s.clock); free(s.stack);
    return done;
}
