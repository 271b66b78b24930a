/* Improves the order of a schedule: moves actions inside the blocks of the critical path, as in job-shop search.

   Rows and codes are as in build.c. Memory and order on a rank are checked before, deadlock and time by replaying the
   part of the schedule that starts after the move. */

#include "build.c"

#define ECHOED 0.3                     /* share of moves that are repeated for the following micro batches */

typedef struct {
    const Problem *p;
    int n, row, period;                /* actions, actions a rank, whether the longest rank span is the objective */
    int *rows, *at, *rank, *needs, *feeds, *next, *waits, *stack, *undo;
    double *hop, *length, *end, *kept_end;
    signed char *why, *kept_why;       /* 0 nothing, 1 rank, 2 data */
    int last;                          /* the action that ends the critical path */
    double spent;                      /* work done, in actions replayed: a clock that is the same on every machine */
    unsigned long long seed;
} Search;

static double chance(Search *s) {      /* xorshift64 */
    s->seed ^= s->seed << 13; s->seed ^= s->seed >> 7; s->seed ^= s->seed << 17;
    return (double)(s->seed >> 11) / 9007199254740992.0;
}
static int below(Search *s, int n) { return (int)(chance(s) * n); }

static void link_actions(Search *s) {
    const Problem *p = s->p;
    int C = p->chunks, M = p->microbatches;
    for (int k = 0; k < s->n; k++) s->needs[k] = s->feeds[k] = -1;
    for (int c = 0; c < C; c++) for (int m = 0; m < M; m++) {
        int f = c * M + m, g = (C + c) * M + m;
        if (c) { s->needs[f] = f - M; s->feeds[f - M] = f; s->hop[f] = p->hop[c - 1]; }
        s->needs[g] = c == C - 1 ? f : g + M;
        s->feeds[s->needs[g]] = g;
        s->hop[g] = c == C - 1 ? 0 : p->hop[c];
        for (int kind = 0; kind < 3; kind++) {
            s->rank[(kind * C + c) * M + m] = p->rank_of[c];
            s->length[(kind * C + c) * M + m] = p->duration[kind * C + c];
        }
    }
}

/* First index of rank r whose action starts at `from` or later. */
static int resume(const Search *s, int r, double from) {
    const int *row = s->rows + (long)r * s->row;
    int low = 0, high = s->row;
    while (low < high) {
        int mid = (low + high) / 2;
        if (s->end[row[mid]] - s->length[row[mid]] < from - TINY) low = mid + 1; else high = mid;
    }
    return low;
}

static int run_rank(Search *s, int r, int depth, int *done) {
    const int *row = s->rows + (long)r * s->row;
    int k = s->next[r];
    double clock = k ? s->end[row[k - 1]] : 0;
    s->waits[r] = -1;
    for (; k < s->row; k++) {
        int code = row[k], source = s->needs[code], fed = s->feeds[code];
        double begin = clock;
        signed char why = k > 0;
        if (source >= 0) {
            double ready = s->end[source];
            if (ready < 0) { s->waits[r] = source; break; }
            ready += s->hop[code];
            if (ready > begin) { begin = ready; why = 2; }
        }
        s->end[code] = clock = begin + s->length[code];
        s->why[code] = why;
        ++*done;
        if (fed >= 0 && s->rank[fed] != r && s->waits[s->rank[fed]] == code) {
            s->waits[s->rank[fed]] = -1;
            s->stack[depth++] = s->rank[fed];
        }
    }
    s->next[r] = k;
    return depth;
}

/* Times of all actions that start at `from` or later; the objective, or -1 when the ranks wait for each other. */
static double replay_from(Search *s, double from) {
    int P = s->p->ranks, depth = 0, done = 0, due = 0;
    for (int r = 0; r < P; r++) {
        s->next[r] = from > 0 ? resume(s, r, from) : 0;
        due += s->row - s->next[r];
        s->waits[r] = -1;
        s->stack[depth++] = r;
    }
    for (int r = 0; r < P; r++)
        for (int k = s->next[r]; k < s->row; k++) s->end[s->rows[(long)r * s->row + k]] = -1;
    while (depth) { depth--; depth = run_rank(s, s->stack[depth], depth, &done); }
    s->spent += due + 10 * P;
    if (done < due) return -1;
    double worst = -NEVER;
    for (int r = 0; r < P; r++) {
        int first = s->rows[(long)r * s->row], last = s->rows[(long)(r + 1) * s->row - 1];
        double span = s->end[last] - (s->period ? s->end[first] - s->length[first] : 0);
        if (span > worst) { worst = span; s->last = last; }
    }
    return worst;
}

/* Whether y may not run before x on their rank. */
static int ordered(const Search *s, int x, int y) {
    int M = s->p->microbatches, C = s->p->chunks;
    return x / M == y / M || s->needs[y] == x || (y / M == x / M + C && x >= C * M && x % M == y % M);
}

static int may_move(const Search *s, int r, int a, int b) {
    const int *row = s->rows + (long)r * s->row;
    for (int k = a + 1; k <= b; k++) if (ordered(s, row[a], row[k])) return 0;
    for (int k = b; k < a; k++) if (ordered(s, row[k], row[a])) return 0;
    return 1;
}

static void move(Search *s, int r, int a, int b) {
    int *row = s->rows + (long)r * s->row, code = row[a], step = a < b ? 1 : -1;
    for (int k = a; k != b; k += step) { row[k] = row[k + step]; s->at[row[k]] = k; }
    row[b] = code;
    s->at[code] = b;
}

static int within_room(const Search *s, int r) {
    const Problem *p = s->p;
    const int *row = s->rows + (long)r * s->row;
    double used = 0;
    if (p->room[r] >= NEVER) return 1;
    for (int k = 0; k < s->row; k++) {
        int stream = row[k] / p->microbatches, kind = stream / p->chunks, c = stream % p->chunks;
        used += kind == 0 ? p->held[c] : kind == 1 ? -p->freed[c] : -(p->held[c] - p->freed[c]);
        if (used > p->room[r]) return 0;
    }
    return 1;
}

/* Blocks of the critical path: runs on one rank without a wait. Three numbers each: rank, first, last index. */
static int blocks(const Search *s, int *found) {
    int count = 0, code = s->last;
    while (code >= 0) {
        int r = s->rank[code], high = s->at[code], low = high;
        const int *row = s->rows + (long)r * s->row;
        while (s->why[row[low]] == 1) low--;
        if (high > low) { found[3 * count] = r; found[3 * count + 1] = low; found[3 * count++ + 2] = high; }
        code = s->why[row[low]] == 2 ? s->needs[row[low]] : -1;
    }
    return count;
}

/* A random move of an end of a block into it, or of an inner action to one of its ends. */
static void inside_block(Search *s, const int *block, int *a, int *b) {
    int low = block[1], high = block[2];
    double u = chance(s);
    if (u < 0.35) { *a = high; *b = chance(s) < 0.5 ? high - 1 : high - 1 - below(s, high - low); }
    else if (u < 0.7) { *a = low; *b = chance(s) < 0.5 ? low + 1 : low + 1 + below(s, high - low); }
    else { *a = low + below(s, high - low + 1); *b = chance(s) < 0.5 ? low : high; }
}

/* A random legal move, done on the rows. Some are anywhere: a tight limit opens a move on the critical path only after
   another, off it, has freed memory. */
static int try_move(Search *s, const int *found, int count, double anywhere, int *rank, int *from, int *to) {
    for (int tries = 0; tries < 200; tries++) {
        int r, a, b;
        if (!count || tries > 100 || chance(s) < anywhere) {
            r = below(s, s->p->ranks);
            a = below(s, s->row);
            b = a + (chance(s) < 0.5 ? 1 : -1) * (1 + below(s, 3));
            if (b < 0 || b >= s->row) continue;
        } else {
            const int *block = found + 3 * below(s, count);
            r = block[0];
            inside_block(s, block, &a, &b);
        }
        s->spent += 5 + 0.2 * abs(a - b);
        if (a == b || !may_move(s, r, a, b)) continue;
        move(s, r, a, b);
        s->spent += s->p->room[r] < NEVER ? 0.5 * s->row : 0;
        if (within_room(s, r)) { *rank = r; *from = a; *to = b; return 1; }
        move(s, r, b, a);
    }
    return 0;
}

/* Do what was done to x, put beside y, to the same streams of the following micro batches: a steady state changes as a
   whole or not at all. Undone where that takes too much room; whether anything was moved. */
static int echo(Search *s, int r, int x, int y, int after) {
    int M = s->p->microbatches, *row = s->rows + (long)r * s->row, moved = 0;
    int times = chance(s) < 0.5 ? M : 1 + below(s, M);
    memcpy(s->undo, row, s->row * sizeof(int));
    for (int k = 1; k <= times && x % M + k < M && y % M + k < M; k++) {
        int a = s->at[x + k], b = s->at[y + k];
        if (a < b && !after) b--;
        if (a > b && after) b++;
        if (a == b) continue;
        if (!may_move(s, r, a, b)) break;
        move(s, r, a, b);
        s->spent += 3 + 0.2 * abs(a - b);
        moved = 1;
    }
    return moved;
}

static void undo_echo(Search *s, int r) {
    int *row = s->rows + (long)r * s->row;
    memcpy(row, s->undo, s->row * sizeof(int));
    for (int k = 0; k < s->row; k++) s->at[row[k]] = k;
    s->spent += 0.5 * s->row;
}

static void keep(Search *s) {
    memcpy(s->kept_end, s->end, s->n * sizeof(double));
    memcpy(s->kept_why, s->why, s->n);
}

static void restore(Search *s) {
    memcpy(s->end, s->kept_end, s->n * sizeof(double));
    memcpy(s->why, s->kept_why, s->n);
}

static double walk(Search *s, int *rows, double target, double work, double heat, double anywhere, int *found) {
    double now = replay_from(s, 0), least = now;
    keep(s);
    while (s->spent < work && least > target) {
        int r, a, b, ended = s->last, count = blocks(s, found);
        if (!try_move(s, found, count, anywhere, &r, &a, &b)) break;
        const int *row = s->rows + (long)r * s->row;
        int low = a < b ? a : b, echoed = 0;
        if (chance(s) < ECHOED && (echoed = echo(s, r, row[b], a < b ? row[b - 1] : row[b + 1], a < b))) {
            s->spent += s->p->room[r] < NEVER ? 0.5 * s->row : 0;
            if (!within_room(s, r)) { undo_echo(s, r); echoed = 0; }
        }
        /* nothing that starts before the first of the moved places did can change */
        double value = replay_from(s, low ? s->kept_end[row[low - 1]] : 0);
        double warmth = heat * (s->spent < work ? 1.0 - s->spent / work : 0) + 1e-12;
        s->spent += 0.2 * s->n;        /* copying the times */
        if (value >= 0 && (value <= now || chance(s) < exp((now - value) / warmth))) {
            now = value;
            keep(s);
            if (value < least - TINY) { least = value; memcpy(rows, s->rows, s->n * sizeof(int)); }
        } else {
            if (echoed) undo_echo(s, r);
            move(s, r, b, a);
            restore(s);
            s->last = ended;
        }
    }
    return least;
}

/* Anneal from `rows`, which are replaced by the best order met; returns its objective. `work`: actions to replay. */
double anneal(const Problem *p, int *rows, int period, double target, double work, double heat,
              double anywhere, int seed) {
    int n = 3 * p->chunks * p->microbatches, P = p->ranks;
    int *whole = malloc(6L * n * sizeof(int)), *small = malloc((3L * P + 3L * p->vpp * p->microbatches) * sizeof(int));
    double *times = malloc(4L * n * sizeof(double));
    signed char *why = malloc(2L * n);
    Search s = {p, n, 3 * p->vpp * p->microbatches, period, whole, whole + n, whole + 2 * n, whole + 3 * n,
                whole + 4 * n, small, small + P, small + 2 * P, small + 3 * P, times, times + n, times + 2 * n, times + 3 * n,
                why, why + n, -1, 0, 88172645463325252ULL + 104729ULL * (unsigned)seed};
    int *found = malloc(3L * n * sizeof(int));
    memset(s.hop, 0, n * sizeof(double));
    memcpy(s.rows, rows, n * sizeof(int));
    link_actions(&s);
    for (int r = 0; r < P; r++) for (int k = 0; k < s.row; k++) s.at[s.rows[(long)r * s.row + k]] = k;
    for (int k = 0; k < 20; k++) chance(&s);
    double least = walk(&s, rows, target, work, heat, anywhere, found);
    free(whole); free(small); free(times); free(why); free(found);
    return least;
}
