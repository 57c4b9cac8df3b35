/* match_plan: a network laid out for the fast weight matching.
 *
 * The score of orbit o splits into a fixed part, from blocks whose other end never moves
 * (inputs, outputs, bias nodes), and links, from blocks between o and another orbit:
 *     score[r][u] = sum_k A[r][k] B[k][u]                 fixed: a matrix product, once per pair
 *                 + sum_x,k L[r][x,k] R[from(x),k][u]     one per link, once per visit of o
 * so each network is packed twice: as a query (A and L by rows of o's units) and as a reference
 * (B and R with o's units side by side, padded to WF_MATCH_PAD). Blocks with no movable end add
 * a plain dot product to the value.
 *
 *   query record      | A of orbit 0 (n, depth) ...      | L of link 0 (n, depth) ...      | rest |
 *   reference record  | B of orbit 0 (depth, padded) ... | R of link 0 (depth, padded) ... | rest |
 *   score record      | fixed scores of orbit 0 (n, padded) | of orbit 1 | ...
 * All parts start at multiples of 64 bytes; padding is zero. */
#pragma once

#include "align/match.h"
#include "base/isa.h"

enum { WF_MATCH_PAD = 16 };

typedef struct wf_match_orbit {
    int n, padded;
    int start;               /* of its units in `from` */
    int price;               /* of its column prices in the work space */
    size_t depth;            /* of the fixed product */
    size_t a, b, score;      /* where its parts begin in the records */
    int first_link, n_links; /* links that score it */
    bool has_loop;           /* one of them is to itself */
} wf_match_orbit;

typedef struct wf_match_link {
    int orbit, other; /* the orbit it scores, and the one it depends on */
    int coef;
    size_t depth; /* units of the other orbit x coef */
    size_t a, b;
    bool counted; /* one of a block's two links: the one whose value enters the dot product */
} wf_match_link;

typedef struct wf_match_plan {
    const wf_graph *graph; /* borrowed */
    wf_match_desc desc;
    int n_orbits, n_links, n_units; /* n_units: entries of `from` */
    int prices;                     /* floats of all price vectors */
    int widest;                     /* largest padded */
    size_t deepest;                 /* largest depth of a link */
    wf_match_orbit *orbits;
    wf_match_link *links;
    size_t rest_a, rest_b, rest; /* blocks without a movable end: place and length */
    size_t query_floats, reference_floats, score_floats;
    int tabled;      /* sweeps whose order is in the table; later ones are drawn when needed */
    uint32_t *order; /* (restarts + 1, tabled, n_orbits) */
    uint32_t *start; /* (restarts + 1, n_units) */
} wf_match_plan;

wf_status wf__match_plan_open(wf_ctx *ctx, const wf_graph *graph, const wf_match_desc *desc,
                              wf_match_plan *out);
void wf__match_plan_close(wf_match_plan *plan);

void wf__match_pack_query(const wf_match_plan *plan, const float *w, float *record);
void wf__match_pack_reference(const wf_match_plan *plan, const float *w, float *record);

/* Memory of one worker, reused from pair to pair. */
typedef struct wf_match_work {
    const wf_ctx *watched; /* once interrupted, a matching ends early and must not be used */
    float *score, *price;
    float *search;     /* what the assignment needs beyond registers: 4 vectors of `widest` */
    int32_t *previous; /* [widest] */
    int32_t *row_of;   /* [widest] */
    uint32_t *free_rows, *match; /* [widest] */
    uint32_t *rows;              /* [deepest] */
    uint32_t *from, *best_from;  /* [n_units] */
    uint32_t *order;             /* [n_orbits] */
    bool *dirty;                 /* [n_orbits] */
    uint8_t *memory;             /* that all the above lie in */
} wf_match_work;
wf_status wf__match_work_open(wf_ctx *ctx, const wf_match_plan *plan, wf_match_work *out);
void wf__match_work_close(wf_match_work *work);

typedef struct wf_match_kernel {
    /* Fixed scores of one query against `count` reference records: count score records. */
    void (*scores)(const wf_match_plan *plan, const float *query, const float *references,
                   size_t count, float *scores);
    /* <a, P b> of one pair after matching; work->best_from holds the matching. */
    double (*match)(const wf_match_plan *plan, const float *query, const float *reference,
                    const float *scores, wf_match_work *work);
} wf_match_kernel;

extern const wf_match_kernel wf__match_kernel_base_f32;
#if defined(__x86_64__)
extern const wf_match_kernel wf__match_kernel_avx2_f32, wf__match_kernel_avx512_f32;
#endif
