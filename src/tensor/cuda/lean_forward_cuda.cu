/* lean_forward_cuda: the edges of a lean block forward, in one kernel and the sums of its slots.
 *
 *   eb = LN(e) modulated    [m | z] = unit(w1 eb + ad[dst] + as[src])    e' = e + (1 + gate) (w2 z + c2)
 * block   three warpgroups, one block a multiprocessor: weights become bf16 panels once, then a warpgroup takes chunks of
 *         lines. At D = 128 one kernel makes the messages and another the update: both halves of the weights together would
 *         leave no room for more than two warpgroups
 * tile    64 rows: e by 16-byte loads into fragments; hidden columns 64 at a time, accumulators begin as ad + as;
 *         z goes on into w2 from registers, m through shared memory into its sums
 * flops   2 (M + 4D) D an edge = 12 D^2 at M = 2D
 * bytes   e read twice (the second time from L2), e' written: 8D of HBM; tables 4 (M + 2D) (1 + 2/8) of L1 an edge;
 *         slots 4M * (1/8 + 1/16..1/8) written and read */
#include "tensor/cuda/lean_fused_cuda.cuh"

namespace wf_gpu {
namespace {

using namespace lean;
using namespace mma;

enum {
    strip = 64,
    strip_tiles = strip / 8,
    strip_bytes = 8192,
    groups = 3,
    block_threads = 128 * groups,
    buffers = 2 /* for strips of messages, used in turn */
};

/* Shared memory, in this order. MS: strips of messages. */
template <int D, int MS, bool Update> struct layout {
    static constexpr int messages = MS * strip, hidden = messages + (Update ? 2 * D : 0);
    static constexpr bool held = D <= 64 || !Update; /* eb in registers, else in a panel */
    static constexpr int w2 = (int)panel_bytes(hidden, D),
                         tiles = w2 + (Update ? (int)panel_bytes(D, 2 * D) : 0),
                         carried = tiles + (MS > 0 ? groups * buffers * strip_bytes : 0),
                         eb = carried + MS * block_threads * 16, /* a multiple of 1,024 */
        sums = eb + (held ? 0 : groups * (int)panel_bytes(tile_rows, D)),
                         tables = sums + groups * 2 * 4 * D * 4,
                         c2 = tables + block_threads / 32 * shared_strip_bytes, bytes = c2 + D * 4;
};

extern __shared__ __align__(1024) unsigned char shared[];

/* One warpgroup's way through its tiles. */
template <int D, int MS, bool Update, bool Gelu, bool Wide> struct walker {
    using at = layout<D, MS, Update>;
    const lean_fused &p;
    int group, warp, lane, thread; /* thread of the warpgroup */
    int column;                    /* the lane's first of sixteen */
    lane_rows rows;
    fragment eb[at::held ? D / 16 : 1];
    float graph_carried;
    int which; /* buffer of the next strip */

    __device__ explicit walker(const lean_fused &args) : p(args), graph_carried(0), which(0) {
        refresh();
    }
    /* Who I am, again: what is derived from it need not stay in registers from one phase to the next. */
    __device__ void refresh() {
        int id;
        asm volatile("mov.u32 %0, %%tid.x;" : "=r"(id));
        group = id / 128;
        warp = id / 32 % 4;
        lane = id % 32;
        thread = id % 128;
        column = 4 * (lane % 4);
    }
    __device__ panel w1() const { return panel{shared_address(shared), at::hidden}; }
    __device__ panel w2() const { return panel{shared_address(shared) + (uint32_t)at::w2, D}; }
    __device__ panel eb_tile() const {
        return panel{shared_address(shared) +
                         (uint32_t)(at::eb + group * (int)panel_bytes(tile_rows, D)),
                     tile_rows};
    }
    __device__ shared_strip next() const { /* of the tables */
        return shared_strip{shared + at::tables + (group * 4 + warp) * shared_strip_bytes};
    }

    __device__ void stage() const {
        stage_panel(w1(), 0, p.w1 + (size_t)p.skipped * D, D, at::hidden, D);
        float *c2 = (float *)(shared + at::c2);
        if (Update) {
            stage_panel(w2(), 0, p.w2, 2 * D, D, 2 * D);
            for (int i = (int)threadIdx.x; i < D; i += block_threads) c2[i] = p.c2[i];
        }
        __syncthreads();
    }

    __device__ panel buffer(int index) const {
        return panel{shared_address(shared) +
                         (uint32_t)(at::tiles + (group * buffers + index) * strip_bytes),
                     tile_rows};
    }

    /* Normalised edges become fragments, their sums over the warp's rows go to shared memory. */
    __device__ void norm(float *sums) {
        const float *mod = p.modulation + (size_t)rows.graph * p.ld_modulation + column;
        float4 v[2][D / 16];
        float mean, rho;
#pragma unroll
        for (int k = 0; k < 2; k++) load_row<D>(v[k], p.e + (size_t)rows.row[k] * D + column);
#pragma unroll
        for (int k = 0; k < 2; k++) normalise<D>(v[k], &mean, &rho);
        if (!at::held) group_barrier(1 + group); /* the last tile's products are done */
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 shift = __ldg((const float4 *)(mod + 16 * j));
            float4 scale = __ldg((const float4 *)(mod + D + 16 * j));
            float4 upper = modulated(v[0][j], scale, shift);
            float4 lower = modulated(v[1][j], scale, shift);
            fragment both = fragment_of(upper, lower);
            if constexpr (at::held) eb[j] = both;
            else store_fragment(eb_tile(), 16 * warp, j, both);
            if (Update)
                sum_columns(plus(masked(rows.there[0], upper), masked(rows.there[1], lower)),
                            sums + warp * D + 16 * j);
        }
    }

    /* After a barrier: the sums of eb over runs, one thread a column. */
    __device__ void sum_runs(const float *sums, const tile_runs &t) {
        if (thread >= D) return;
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (t.begins >> k & 1) graph_carried = 0;
            graph_carried += sums[k * D + thread];
            if (t.ends >> k & 1) p.run_sums[(size_t)t.run[k] * D + thread] = graph_carried;
        }
    }

    /* The tables for hidden columns n .. n + 63. */
    __device__ void fetch(int n) {
        const float *of_a = rows.from_a ? p.as : p.ad, *of_b = rows.from_a ? p.ad : p.as;
        int from = p.skipped + n;
        next().fetch(of_a + (size_t)rows.a * p.ld_table + from,
                     of_b + (size_t)rows.b[0] * p.ld_table + from,
                     of_b + (size_t)rows.b[1] * p.ld_table + from);
    }

    /* x of hidden columns n .. n + 63, whose tables have been fetched. */
    __device__ void hidden(float (&x)[strip_tiles][4], int n) {
        next().take(x);
        begin<Wide>();
        if constexpr (at::held) forward_mma<Wide>(x, eb, w1(), n, 0, false);
        else tile_forward_mma<Wide, D / 16>(x, eb_tile(), 16 * warp, 0, w1(), n, 0, false);
        commit<Wide>();
        if (n + strip < at::hidden) fetch(n + strip);
        wait<Wide>();
        settle(x);
    }

    __device__ void messages(const tile_runs &t, int octet0, const float *sums) {
#pragma unroll 1
        for (int n = 0; n < at::messages; n += strip) {
            refresh();
            panel tile = buffer(which);
            which ^= 1;
            float x[strip_tiles][4];
            hidden(x, n);
#pragma unroll
            for (int j = 0; j < strip_tiles; j++)
#pragma unroll
                for (int k = 0; k < 4; k++)
                    x[j][k] = rows.there[k / 2] ? fast_unit<Gelu>(x[j][k]) : 0;
#pragma unroll
            for (int j = 0; j < strip / 16; j++)
                store_fragment(tile, 16 * warp, j, fragment_of(x[2 * j], x[2 * j + 1]));
            group_barrier(1 + group);
            if (Update && n == 0) sum_runs(sums, t);
            float4 *carried =
                (float4 *)(shared + at::carried) + n / strip * block_threads + group * 128 + thread;
            float4 value = *carried;
            sum_tile(tile, 16 * warp, t, octet0, p.n_octets, p.slots + n + 16 * warp + column,
                     at::messages, &value);
            *carried = value;
        }
    }

    __device__ void update() {
        float o[D / 8][4];
#pragma unroll
        for (int n = 0; n < 2 * D; n += strip) {
            refresh();
            float x[strip_tiles][4];
            hidden(x, at::messages + n);
            fragment z[strip / 16];
#pragma unroll
            for (int j = 0; j < strip_tiles; j++)
#pragma unroll
                for (int k = 0; k < 4; k++) x[j][k] = fast_unit<Gelu>(x[j][k]);
#pragma unroll
            for (int j = 0; j < strip / 16; j++) z[j] = fragment_of(x[2 * j], x[2 * j + 1]);
            begin<Wide>();
            forward_mma<Wide>(o, z, w2(), 0, n, n == 0);
            finish<Wide>();
            settle(o);
        }
        const float *gate = p.modulation + (size_t)rows.graph * p.ld_modulation + 2 * D + column;
        const float *c2 = (const float *)(shared + at::c2) + column;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 by = __ldg((const float4 *)(gate + 16 * j));
            float4 add = *(const float4 *)(c2 + 16 * j);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                if (!rows.there[k]) continue;
                size_t place = (size_t)rows.row[k] * D + column + 16 * j;
                float4 in = *(const float4 *)(p.e + place);
                const float *first = &o[2 * j][2 * k], *second = &o[2 * j + 1][2 * k];
                *(float4 *)(p.out + place) = make_float4(in.x + (1 + by.x) * (first[0] + add.x),
                                                         in.y + (1 + by.y) * (first[1] + add.y),
                                                         in.z + (1 + by.z) * (second[0] + add.z),
                                                         in.w + (1 + by.w) * (second[1] + add.w));
            }
        }
    }

    __device__ void run() {
        int parity = 0;
        for (int chunk = (int)blockIdx.x + (int)gridDim.x * group; chunk < p.n_chunks;
             chunk += (int)gridDim.x * groups) {
            int first = chunk * p.steps, last = first + p.steps;
            lane_rows coming = rows_of_pair(p.octets, first + warp, last);
            for (int pair = first; pair < last; pair += 4, parity ^= 1) {
                refresh();
                rows = coming;
                fetch(0);
                coming = rows_of_pair(p.octets, pair + 4 + warp, last);
                tile_runs t = runs_of_tile(p.octets, pair, last);
                float *sums = (float *)(shared + at::sums) + (group * 2 + parity) * 4 * D;
                norm(sums);
                prefetch_rows<D>(p.e, coming.row[0], coming.row[1]);
                if (!at::held) publish();
                if (MS == 0) {
                    group_barrier(1 + group);
                    sum_runs(sums, t);
                } else {
                    messages(t, 2 * pair, sums);
                }
                if (Update) update();
            }
        }
    }
};

template <int D, int MS, bool Update, bool Gelu, bool Wide>
__global__ void __launch_bounds__(block_threads, 1)
    lean_forward_kernel(const __grid_constant__ lean_fused p) {
    walker<D, MS, Update, Gelu, Wide> w(p);
    w.stage();
    w.run();
}

template <int D, int MS, bool Update> bool launch(const lean_fused &p, bool gelu) {
    const int bytes = layout<D, MS, Update>::bytes;
    auto kernel = gelu ? lean_forward_kernel<D, MS, Update, true, true>
                       : lean_forward_kernel<D, MS, Update, false, true>;
    if (cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes) !=
        cudaSuccess)
        return false;
    int blocks = p.n_chunks < processor_count() ? p.n_chunks : processor_count();
    kernel<<<(unsigned)blocks, block_threads, (size_t)bytes, stream()>>>(p);
    return launched();
}

/* By the number of strips of messages. */
template <int D, int MS = 2 * D / strip> bool launch_strips(lean_fused p, bool gelu) {
    if constexpr (D <= 64) {
        if (p.messages == MS * strip) return launch<D, MS, true>(p, gelu);
        if constexpr (MS > 0) return launch_strips<D, MS - 1>(p, gelu);
        return false;
    } else {
        if (p.messages > 0 && !launch<D, MS, false>(p, gelu)) return false;
        p.skipped += p.messages;
        return launch<D, 0, true>(p, gelu);
    }
}

/* A warp takes one end of a node and 128 columns, four a lane; the list's rows are known to all lanes beforehand, and eight
 * of them are on their way at a time. */
__global__ void __launch_bounds__(threads_each)
    end_sums_kernel(end_sums s, const uint32_t *start, const uint32_t *rows) {
    int list = (int)(blockIdx.x * (threads_each / 32) + threadIdx.x / 32);
    int lane = (int)(threadIdx.x % 32), col = (int)(blockIdx.y * 128) + 4 * lane;
    if (list >= 2 * s.nodes || s.to[list % 2] == NULL) return;
    uint32_t first = start[list], last = start[list + 1];
    float4 sum = {0, 0, 0, 0};
    for (; first < last; first += 32) {
        uint32_t own = first + lane < last ? rows[first + lane] : 0;
        int count = min(32, (int)(last - first));
        for (int i = 0; i < count; i += 8) {
            float4 x[8];
#pragma unroll
            for (int k = 0; k < 8; k++) {
                uint32_t row = __shfl_sync(0xffffffffu, own, (i + k) % 32);
                if (i + k < count && col < s.cols)
                    x[k] = __ldcs((const float4 *)(s.slots + (size_t)row * s.cols + col));
            }
#pragma unroll
            for (int k = 0; k < 8; k++)
                if (i + k < count && col < s.cols) sum = plus(sum, x[k]);
        }
    }
    if (col >= s.cols) return;
    float degree = s.degree == NULL ? 1 : s.degree[list / 2], by = degree > 0 ? 1 / degree : 0;
    float4 *to = (float4 *)(s.to[list % 2] + (size_t)(list / 2) * s.ld_to + col);
    sum = scaled(by, sum);
    *to = s.add ? plus(*to, sum) : sum;
}

} // namespace

void lean::sum_ends(const end_sums &sums) {
    if (sums.nodes == 0 || sums.cols == 0) return;
    dim3 grid(blocks_for(2 * (size_t)sums.nodes, threads_each / 32),
              blocks_for((size_t)sums.cols, 128));
    end_sums_kernel<<<grid, threads_each, 0, stream()>>>(sums, sums.lines->slot_start,
                                                         sums.lines->slots);
}

int lean::processor_count() {
    static int count = 0;
    if (count == 0) cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
    return count;
}

lean_fused lean::lean_operands(const wf_op *op, const wf_octets *lines, int messages) {
    const wf_tensor *modulation = op->in[1], *w1 = op->in[4];
    return lean_fused{lines->octets,
                      lines->n_octets,
                      lines->n_chunks,
                      lines->steps,
                      data_of(op->in[0]),
                      data_of(op->out[0]),
                      data_of(modulation) + op->column,
                      modulation->ld,
                      data_of(op->in[2]),
                      data_of(op->in[3]),
                      op->in[2]->ld,
                      data_of(w1),
                      data_of(op->in[5]),
                      data_of(op->in[6]),
                      messages,
                      w1->rows - 2 * op->in[0]->cols - messages,
                      lines->n_runs,
                      NULL,
                      NULL};
}

namespace {
/* The kernels take what a multiprocessor of sm_90 has; others work step by step. */
bool has_shared_memory() {
    static int bytes = 0;
    if (bytes == 0) cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0);
    return bytes >= 227 * 1024;
}
} // namespace

bool lean_fused_fits(const wf_op *op) {
    const wf_tensor *e = op->in[0], *modulation = op->in[1], *ad = op->in[2], *w1 = op->in[4];
    int de = e->cols, messages = w1->rows - 2 * de;
    bool widths = de == 32 || de == 64 || de == 128;
    bool aligned = op->column % 4 == 0 && modulation->ld % 4 == 0 && ad->ld % 4 == 0 &&
                   ad->ld == op->in[3]->ld;
    return has_shared_memory() && widths && aligned &&
           messages % (de > 64 ? 4 * strip : strip) == 0 && messages <= 2 * de &&
           op->mode != WF_SUM_ATTENTION && op->unit != WF_UNIT_SINE && op->part->lines[0] != NULL &&
           op->part->n_edges > 0;
}

bool lean_fused_forward(const wf_op *op, wf_arena *arena) {
    const wf_octets *lines = op->part->lines[1];
    const wf_tensor *mean = op->out[1], *to[2] = {op->out[2], op->out[3]};
    int de = op->in[0]->cols, messages = to[0] == NULL ? 0 : op->in[4]->rows - 2 * de;
    lean_fused p = lean_operands(op, lines, messages);
    p.slots = scratch(arena, wf_octets_slots(lines) * (size_t)messages);
    p.run_sums = scratch(arena, (size_t)lines->n_runs * (size_t)de);
    if (p.slots == NULL || p.run_sums == NULL) return false;
    bool gelu = op->unit == WF_UNIT_GELU;
    bool done = de == 32   ? launch_strips<32>(p, gelu)
                : de == 64 ? launch_strips<64>(p, gelu)
                           : launch_strips<128>(p, gelu);
    if (!done) return false;
    const float *degree = op->mode == WF_SUM_MEAN ? (const float *)op->part->degree : NULL;
    if (messages > 0)
        sum_ends(end_sums{lines,
                          op->part->n_nodes,
                          p.slots,
                          messages,
                          degree,
                          {data_of(to[0]), data_of(to[1])},
                          to[0]->ld,
                          false});
    graph_run_sums(slot_sum_step{op->part, p.run_sums, de, de, 0, NULL, true, data_of(mean),
                                 mean->ld, true, lines});
    return launched();
}

} // namespace wf_gpu
