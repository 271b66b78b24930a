/* Replays a schedule: every rank runs its row in order, an action starts when its rank is free and its input is there.

   An action's code is (kind * chunks + chunk) * micro batches + micro batch; kinds: 0 F, 1 I, 2 W, 3 B (I and W in
   one). A forward and the backward after it (B, or I and W) may run together: they start when both inputs are there,
   and their results leave when both are done. The Python twin is engine.py's; both must do the same operations in the
   same order. */

#include <stdlib.h>

typedef struct {
    int ranks, chunks, microbatches, contention;
    const int *rank_of;                 /* per chunk */
    const long long *offset;            /* per rank + 1: where its row begins in codes */
    const long long *codes;
    const double *duration;             /* per kind and chunk */
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

/* Where the input of an action is noted, or -1: it needs none from elsewhere. */
static long long input_of(const Replay *p, long long code) {
    long long cells = (long long)p->chunks * p->microbatches, kind = code / cells;
    return kind == 2 ? -1 : (kind == 0 ? 0 : cells) + code % cells;
}

/* Places that run as one from k on. */
static int joined(const Replay *p, long long k) {
    if (!p->pair || p->pair[k] < 0) return 1;
    return p->codes[k + 1] / ((long long)p->chunks * p->microbatches) == 1 ? 3 : 2;
}

/* When the inputs of some places are there, at the earliest when the rank is free; -1: one is missing. */
static double ready_at(const Replay *p, State *s, int r, long long k, int count) {
    double begin = s->clock[r];
    for (int j = 0; j < count; j++) {
        long long slot = input_of(p, p->codes[k + j]);
        if (slot < 0) continue;
        if (s->arrival[slot] < 0) { s->waits[r] = slot; return -1; }
        if (s->arrival[slot] > begin) begin = s->arrival[slot];
    }
    return begin;
}

/* Writes the times of places that run as one; when all of them are done. */
static double lay(const Replay *p, long long k, int count, double begin, double *start, double *end) {
    double alone = 0, share = 1;
    for (int j = 0; j < count; j++) alone += p->duration[p->codes[k + j] / p->microbatches];
    if (count > 1 && alone) share = p->pair[k] / alone;
    for (int j = 0; j < count; j++) {
        start[k + j] = begin;
        end[k + j] = begin = begin + share * p->duration[p->codes[k + j] / p->microbatches];
    }
    return begin;
}

/* Hands on the result of a place; a rank that waits for it goes on. */
static void hand_on(const Replay *p, State *s, int r, long long code, double end, int *depth) {
    int m = (int)(code % p->microbatches), stream = (int)(code / p->microbatches);
    int kind = stream / p->chunks, chunk = stream % p->chunks;
    long long fed = send(p, s, kind, chunk, m, end);
    if (fed < 0) return;
    int other = p->rank_of[kind == 0 ? (chunk + 1 < p->chunks ? chunk + 1 : chunk) : chunk - 1];
    if (other != r && s->waits[other] == fed) { s->waits[other] = -1; s->stack[(*depth)++] = other; }
}

/* Runs rank r as far as its inputs allow; returns the number of actions run. */
static long long advance(const Replay *p, State *s, int r, double *start, double *end, signed char *cause, int *depth) {
    long long k = s->next[r], first = k;
    while (k < p->offset[r + 1]) {
        int count = joined(p, k);
        double free_at = s->clock[r], begin = ready_at(p, s, r, k, count);
        if (begin < 0) break;
        for (int j = 0; j < count; j++) {
            long long slot = input_of(p, p->codes[k + j]);
            int late = begin > free_at && slot >= 0 && s->arrival[slot] == begin;
            cause[k + j] = late ? 2 : k + j > p->offset[r];
        }
        s->clock[r] = lay(p, k, count, begin, start, end);
        for (int j = 0; j < count; j++) hand_on(p, s, r, p->codes[k + j], s->clock[r], depth);
        k += count;
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
    while (depth) { int r = s.stack[--depth]; done += advance(p, &s, r, start, end, cause, &depth); }
    free(s.arrival); free(s.link); free(s.waits); free(s.clock); free(s.stack);
    return done;
}
