/* Builds one schedule, action by action in the order of time, and improves the order of one by annealing.

   An action's code is (kind * chunks + chunk) * micro batches + micro batch; kinds: 0 F, 1 I, 2 W. The Python twin of
   `build` is build_slowly in build.py; both must do the same operations in the same order. */

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
    double window;                     /* micro batches at most between F and I of the first chunk */
    double pace;                       /* least time from the start of one micro batch to that of the next */
    double patience;                   /* the most urgent that could start within so long; below 0: least lateness */
} Rule;

typedef struct { int count, stream[MOST]; double from[MOST], latest[MOST], next; } Choice;

typedef struct {
    const Problem *p; const Rule *rule; const double *tail, *lag;
    int *count;                        /* per kind and chunk: how many have run */
    int *length;                       /* per rank */
    double *clock, *used, *left, *start;
    double *ready, *wanted;            /* per kind and chunk: when the next one's input is there, its latest start */
    Choice *choice;                    /* per rank, valid unless stale */
    char *stale;
} Build;

static int fits(const Build *b, int r, int j) {
    const Problem *p = b->p;
    const int *own = p->chunk_of + r * p->vpp;
    if (own[j] == 0 && b->count[0] - b->count[p->chunks] >= b->rule->window) return 0;
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

/* When the input of an action is there. */
static double arrival(const Build *b, int kind, int c, int m) {
    const Problem *p = b->p;
    int C = p->chunks, M = p->microbatches, source;
    double hop = 0;
    if (kind == 0) { if (c == 0) return m * b->rule->pace; source = c - 1; hop = p->hop[c - 1]; }
    else if (kind == 2) source = C + c;
    else if (c == C - 1) source = c;
    else { source = C + c + 1; hop = p->hop[c]; }
    double s = b->start[(long)source * M + m];
    return s < 0 ? NEVER : s + p->duration[source] + hop;
}

/* A stream goes on to its next action. */
static void advance(Build *b, int stream) {
    int C = b->p->chunks, M = b->p->microbatches, m = b->count[stream];
    b->ready[stream] = m < M ? arrival(b, stream / C, stream % C, m) : NEVER;
    if (m < M) b->wanted[stream] = b->rule->horizon - b->tail[(long)stream * M + m] - b->p->duration[stream];
}

static void offer(Build *b, Choice *a, int r, int stream) {
    double from = b->ready[stream] > b->clock[r] ? b->ready[stream] : b->clock[r];
    a->stream[a->count] = stream;
    a->from[a->count] = from;
    a->latest[a->count++] = b->wanted[stream];
    if (from < a->next) a->next = from;
}

/* All actions that rank r could run next, and what a forward waiting for memory makes urgent. */
static void refresh(Build *b, int r) {
    const Problem *p = b->p;
    int C = p->chunks, blocked = 0;
    Choice *a = b->choice + r;
    double waiting[MOST], wanted[MOST], urgent = NEVER;
    a->count = 0;
    a->next = NEVER;
    for (int j = 0; j < p->vpp; j++) {
        int c = p->chunk_of[r * p->vpp + j];
        if (b->ready[c] < NEVER) {
            if (fits(b, r, j)) offer(b, a, r, c);
            else { waiting[blocked] = b->ready[c]; wanted[blocked++] = b->wanted[c]; }
        }
        if (b->ready[C + c] < NEVER) offer(b, a, r, C + c);
        if (b->ready[2 * C + c] < NEVER) offer(b, a, r, 2 * C + c);
    }
    for (int k = 0; k < blocked; k++) if (waiting[k] <= a->next + TINY && wanted[k] < urgent) urgent = wanted[k];
    for (int k = 0; urgent < NEVER && k < a->count; k++) {
        int kind = a->stream[k] / C, c = a->stream[k] % C;
        double frees = kind == 1 ? p->freed[c] : kind == 2 ? p->held[c] - p->freed[c] : 0;
        if (frees > 0 && urgent - b->rule->inherit < a->latest[k]) a->latest[k] = urgent - b->rule->inherit;
    }
    b->stale[r] = 0;
}

/* The most urgent of the candidates that can start within the rule's patience; among equals the first. */
static int most_urgent(const Build *b, int r) {
    const Choice *a = b->choice + r;
    int chosen = -1;
    for (int z = 0; z < a->count; z++)
        if (a->from[z] <= a->next + b->rule->patience + TINY && (chosen < 0 || a->latest[z] < a->latest[chosen]))
            chosen = z;
    return chosen;
}

/* The candidate after which the worst lateness is least; among equals the earliest, then the most urgent. */
static int least_late(const Build *b, int r) {
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

static int best(const Build *b, int r) {
    return b->rule->patience < 0 ? least_late(b, r) : most_urgent(b, r);
}

/* Micro batch m of a stream has its input; that counts if it is the next one. */
static void feed(Build *b, int stream, int m) {
    if (b->count[stream] != m) return;
    advance(b, stream);
    b->stale[b->p->rank_of[stream % b->p->chunks]] = 1;
}

static void place(Build *b, int r, int z, int *rows) {
    const Problem *p = b->p;
    int C = p->chunks, M = p->microbatches, stream = b->choice[r].stream[z], kind = stream / C, c = stream % C;
    int m = b->count[stream]++, code = stream * M + m;
    double from = b->choice[r].from[z];
    b->start[code] = from;
    b->clock[r] = from + p->duration[stream];
    b->left[r] -= p->duration[stream];
    b->used[r] += kind == 0 ? p->held[c] : kind == 1 ? -p->freed[c] : -(p->held[c] - p->freed[c]);
    rows[(long)r * 3 * p->vpp * M + b->length[r]++] = code;
    b->stale[r] = 1;
    advance(b, stream);
    if (kind == 0) feed(b, c + 1 < C ? c + 1 : C + c, m);
    if (kind == 1) { feed(b, 2 * C + c, m); if (c > 0) feed(b, C + c - 1, m); }
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
               calloc(P, sizeof(double)), calloc(P, sizeof(double)), start, malloc(3 * C * sizeof(double)),
               malloc(3 * C * sizeof(double)), malloc(P * sizeof(Choice)), malloc(P)};
    memset(b.stale, 1, P);
    for (long k = 0; k < total; k++) start[k] = -1;
    for (int stream = 0; stream < 3 * C; stream++) advance(&b, stream);
    for (int c = 0; c < C; c++)
        b.left[p->rank_of[c]] += M * (p->duration[c] + p->duration[C + c] + p->duration[2 * C + c]);
    for (int r; done < total && (r = earliest(&b)) >= 0; done++) {
        place(&b, r, best(&b, r), rows);
        if (b.clock[r] > last) last = b.clock[r];
    }
    free(b.count); free(b.length); free(b.clock); free(b.used); free(b.left); free(b.ready); free(b.wanted); free(b.choice); free(b.stale);
    return done < total ? -1 : last;
}
