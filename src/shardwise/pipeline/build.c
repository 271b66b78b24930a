/* Builds one schedule, action by action in the order of time, and improves the order of one by annealing.

   An action's code is (kind * chunks + chunk) * micro batches + micro batch; kinds: 0 F, 1 I, 2 W. The Python twin of
   `build` is build_slowly.py; both must do the same operations in the same order. */

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define NEVER 1e300
#define TINY 1e-9
#define MOST 96                        /* candidates of a rank: 3 kinds x at most 32 chunks */

typedef struct {
    int ranks, chunks, microbatches, vpp;
    const int *rank_of, *position;     /* per chunk: its rank, and its place among the rank's chunks */
    const int *chunk_of;               /* per rank and position */
    const double *duration;            /* per kind and chunk */
    const double *hop;                 /* between chunk c and c + 1; 0 inside a rank */
    const double *held, *freed;        /* per chunk: bytes F takes, bytes I gives back */
    const double *room;                /* per rank: bytes for activations, rounding included */
} Problem;

typedef struct {
    double horizon;                    /* makespan aimed at: latest starts are counted back from it */
    double reserve;                    /* room kept for later chunks before an earlier one may start, in their bytes */
    double inherit;                    /* how much more urgent than a forward that memory blocks is what unblocks it */
} Rule;

typedef struct { int count, stream[MOST]; double from[MOST], latest[MOST], next; } Choice;

typedef struct {
    const Problem *p; const Rule *rule; const double *tail, *lag;
    int *count;                        /* per kind and chunk: how many have run */
    int *length;                       /* per rank */
    double *clock, *used, *left, *start;
    Choice *choice;                    /* per rank, valid unless stale */
    char *stale;
} Build;

static int fits(const Build *b, int r, int j) {
    const Problem *p = b->p;
    const int *own = p->chunk_of + r * p->vpp;
    if (p->room[r] >= NEVER) return 1;
    int first = b->count[own[p->vpp - 1]] + (j == p->vpp - 1), more = first < p->microbatches;
    double later = 0, worst = 0;
    /* Safe when the first micro batch that still needs this rank can pass once all before it have left. */
    for (int k = 0; k < p->vpp; k++) {
        int ahead = b->count[own[k]] + (k == j) - first;
        if (k > j) later += p->held[own[k]];
        if (more || ahead > 0) worst += (ahead > 1 ? ahead : 1) * p->held[own[k]];
    }
    double keep = b->count[own[p->vpp - 1]] < p->microbatches ? b->rule->reserve * later : 0;
    return b->used[r] + p->held[own[j]] + keep <= p->room[r] && worst <= p->room[r];
}

/* When the input of the next action of a stream is there. */
static double arrival(const Build *b, int kind, int c, int m) {
    const Problem *p = b->p;
    int C = p->chunks, M = p->microbatches, source;
    double hop = 0;
    if (kind == 0) { if (c == 0) return 0; source = c - 1; hop = p->hop[c - 1]; }
    else if (c == C - 1) source = c;
    else { source = C + c + 1; hop = p->hop[c]; }
    double s = b->start[(long)source * M + m];
    return s < 0 ? NEVER : s + p->duration[source] + hop;
}

static void offer(Build *b, Choice *a, int r, int stream, double ready) {
    double from = ready > b->clock[r] ? ready : b->clock[r];
    a->stream[a->count] = stream;
    a->from[a->count] = from;
    a->latest[a->count] = b->rule->horizon - b->tail[(long)stream * b->p->microbatches + b->count[stream]]
                          - b->p->duration[stream];
    a->count++;
    if (from < a->next) a->next = from;
}

/* All actions that rank r could run next, and what a forward waiting for memory makes urgent. */
static void refresh(Build *b, int r) {
    const Problem *p = b->p;
    int C = p->chunks, M = p->microbatches;
    Choice *a = b->choice + r;
    double waiting[MOST], wanted[MOST], urgent = NEVER;
    int blocked = 0;
    a->count = 0;
    a->next = NEVER;
    for (int j = 0; j < p->vpp; j++) {
        int c = p->chunk_of[r * p->vpp + j], m = b->count[c];
        double ready;
        if (m < M && (ready = arrival(b, 0, c, m)) < NEVER) {
            if (fits(b, r, j)) offer(b, a, r, c, ready);
            else {
                waiting[blocked] = ready;
                wanted[blocked++] = b->rule->horizon - b->tail[(long)c * M + m] - p->duration[c];
            }
        }
        m = b->count[C + c];
        if (m < M && (ready = arrival(b, 1, c, m)) < NEVER) offer(b, a, r, C + c, ready);
        if (b->count[2 * C + c] < b->count[C + c]) offer(b, a, r, 2 * C + c, b->clock[r]);
    }
    for (int k = 0; k < blocked; k++) if (waiting[k] <= a->next + TINY && wanted[k] < urgent) urgent = wanted[k];
    for (int k = 0; urgent < NEVER && k < a->count; k++) {
        int kind = a->stream[k] / C, c = a->stream[k] % C;
        double frees = kind == 1 ? p->freed[c] : kind == 2 ? p->held[c] - p->freed[c] : 0;
        if (frees > 0 && urgent - b->rule->inherit < a->latest[k]) a->latest[k] = urgent - b->rule->inherit;
    }
    b->stale[r] = 0;
}

/* The candidate after which the worst lateness is least; among equals the earliest, then the most urgent. */
static int best(const Build *b, int r) {
    const Choice *a = b->choice + r;
    double slack = b->rule->horizon + b->lag[r] - a->next - b->left[r], least = NEVER, begin = NEVER, latest = NEVER;
    int chosen = -1;
    for (int z = 0; z < a->count; z++) {
        double from = a->from[z], end = from + b->p->duration[a->stream[z]], late = 0, x;
        if ((x = from - a->latest[z]) > late) late = x;
        if ((x = from - a->next - slack) > late) late = x;
        for (int o = 0; o < a->count; o++) {
            x = (end > a->from[o] ? end : a->from[o]) - a->latest[o];
            if (o != z && x > late) late = x;
        }
        if (late < least - TINY || (late <= least + TINY && (from < begin - TINY ||
            (from <= begin + TINY && a->latest[z] < latest)))) {
            chosen = z; least = late; begin = from; latest = a->latest[z];
        }
    }
    return chosen;
}

static void place(Build *b, int r, int z, int *rows) {
    const Problem *p = b->p;
    int C = p->chunks, M = p->microbatches, stream = b->choice[r].stream[z], kind = stream / C, c = stream % C;
    int code = stream * M + b->count[stream]++;
    double from = b->choice[r].from[z];
    b->start[code] = from;
    b->clock[r] = from + p->duration[stream];
    b->left[r] -= p->duration[stream];
    b->used[r] += kind == 0 ? p->held[c] : kind == 1 ? -p->freed[c] : -(p->held[c] - p->freed[c]);
    rows[(long)r * 3 * p->vpp * M + b->length[r]++] = code;
    b->stale[r] = 1;
    if (kind == 0 && c + 1 < C) b->stale[p->rank_of[c + 1]] = 1;
    if (kind == 1 && c > 0) b->stale[p->rank_of[c - 1]] = 1;
}

static int earliest(Build *b) {
    int found = -1;
    double when = NEVER;
    for (int r = 0; r < b->p->ranks; r++) {
        if (b->stale[r]) refresh(b, r);
        if (b->choice[r].next < when) { when = b->choice[r].next; found = r; }
    }
    return found;
}

/* Rows of codes and start by code. `tail`: by code, least time after the action's end; `lag`: by rank, how much later
   than the horizon it may end. Returns the last end, or -1 when memory leaves no way on. */
double build(const Problem *p, const Rule *rule, const double *tail, const double *lag, int *rows, double *start) {
    int C = p->chunks, M = p->microbatches, P = p->ranks;
    long total = 3L * C * M, done = 0;
    double last = 0;
    Build b = {p, rule, tail, lag, calloc(3 * C, sizeof(int)), calloc(P, sizeof(int)), calloc(P, sizeof(double)),
               calloc(P, sizeof(double)), calloc(P, sizeof(double)), start, malloc(P * sizeof(Choice)), malloc(P)};
    memset(b.stale, 1, P);
    for (long k = 0; k < total; k++) start[k] = -1;
    for (int c = 0; c < C; c++)
        b.left[p->rank_of[c]] += M * (p->duration[c] + p->duration[C + c] + p->duration[2 * C + c]);
    for (int r; done < total && (r = earliest(&b)) >= 0; done++) {
        place(&b, r, best(&b, r), rows);
        if (b.clock[r] > last) last = b.clock[r];
    }
    free(b.count); free(b.length); free(b.clock); free(b.used); free(b.left); free(b.choice); free(b.stale);
    return done < total ? -1 : last;
}
