/* lean_back_ahead: the computing warpgroups of the lean backward at D <= 64.
 *
 * The rows and first tables of a tile are loaded before the sums of the last tile are complete;
 * tables and message gradients of a strip during the strip before it, the gradients to where dx of
 * the strip will go. */
#pragma once

#include "models/cuda/gmn_lean/lean_back.cuh"

namespace wf_gpu::lean {

template <int D, int Q, int MS, bool Gelu, bool Attention>
struct ahead_computer : computing<D, Q, MS> {
    static_assert(Q == 1, "the whole of deb");
    using base = computing<D, Q, MS>;
    using at = layout<D, Q, MS>;
    using base::column;
    using base::fetch;
    using base::next;
    using base::p;
    using base::place;
    using base::quarter;
    using base::refresh;
    using base::rows;
    using base::start_deb;
    using base::start_message;
    using base::start_strip;
    using base::start_update;
    using base::store_strip;
    using base::sum_segments;
    using base::sums_of;
    using base::tile;
    using base::warp;

    static constexpr int sixteens = D / 16;

    float4 e[2][sixteens], de[2][sixteens]; /* rows of the streams, being loaded */
    float mean[2], rho[2];

    __device__ explicit ahead_computer(const lean_gradient &args) : base(args) {}

    /* The messages' gradients: rows of a lie where dx of the strip will. */
    __device__ shared_strip gradients(int s) const {
        return shared_strip{shared + at::tiles + place * at::each +
                                (at::tile_dx + s) * strip_bytes + warp * rows_a_bytes,
                            shared + at::gradients + (place * 4 + warp) * rows_b_bytes};
    }

    __device__ const float *row_of(const float *stream, int k) const {
        return stream + (size_t)rows.row[k] * D + column;
    }

    /* The rows of a tile, what comes first of its tables and its streams, being loaded. */
    __device__ void open(int pair, int last) {
        refresh();
        rows = rows_of_pair(p.f.bundles, pair + warp, last);
        fetch(MS);
#pragma unroll
        for (int k = 0; k < 2; k++) load_row(e[k], row_of(p.f.e, k));
#pragma unroll
        for (int k = 0; k < 2; k++) load_row(de[k], row_of(p.f.out, k));
    }

    /* eb and do of the tile into their panels, once these are empty. The next tile's rows are being
     * loaded to L2. */
    __device__ void load(int pair, int last) {
        refresh();
        lane_rows coming = rows_of_pair(p.f.bundles, pair + 4 + warp, last);
        const float *mod = p.f.modulation + (size_t)rows.graph * p.f.ld_modulation + column;
        float4 shift[sixteens], scale[sixteens], gate[sixteens];
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            shift[j] = load_constant(mod + 16 * j);
            scale[j] = load_constant(mod + D + 16 * j);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) normalise<D>(e[k], &mean[k], &rho[k]);
        prefetch_rows<D>(p.f.e, coming.row[0], coming.row[1]);
        prefetch_rows<D>(p.f.out, coming.row[0], coming.row[1]);
        meet(barrier_empty + place);
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            gate[j] = load_constant(mod + 2 * D + 16 * j);
            store_fragment(tile(place, at::tile_eb), 16 * warp, j,
                           fragment_of(modulated(e[0][j], scale[j], shift[j]),
                                       modulated(e[1][j], scale[j], shift[j])));
        }
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            float4 by = gate[j];
            by = make_float4(0.5f + 0.5f * by.x, 0.5f + 0.5f * by.y, 0.5f + 0.5f * by.z,
                             0.5f + 0.5f * by.w);
            float4 upper = masked(rows.there[0], times(de[0][j], by));
            float4 lower = masked(rows.there[1], times(de[1][j], by));
            store_fragment(tile(place, at::tile_do), 16 * warp, j, fragment_of(upper, lower));
            sum_columns(plus(upper, lower), sums_of(at::kind_do) + 16 * j);
        }
    }

    __device__ void update_strip(int s) {
        refresh();
        float x[strip_tiles][4], dz[strip_tiles][4];
        next().template take<0>(x);
        start_strip(x, dz, s);
        if (s + 1 < at::z_strips) fetch(MS + s + 1);
        else if (MS > 0) {
            fetch(0);
            fetch_pulls(0);
        }
        wait<group_products>();
        settle(x);
        settle(dz);
        base::template units<Gelu>(x, dz, s);
    }

    /* The gradients of both sums of messages for strip s. */
    __device__ void fetch_pulls(int s) {
        const float *of_a = p.dto[rows.from_a] + at::place(s, quarter);
        const float *of_b = p.dto[!rows.from_a] + at::place(s, quarter);
        gradients(s).fetch(of_a + (size_t)rows.a * p.ld_dto, of_b + (size_t)rows.b[0] * p.ld_dto,
                           of_b + (size_t)rows.b[1] * p.ld_dto);
    }

    __device__ void message_strip(int s) {
        refresh();
        float x[strip_tiles][4];
        float degree[3] = {1, 1, 1}; /* half the factors, as slopes are doubled */
        float4 weights[2];
        const int nodes[3] = {rows.a, rows.b[0], rows.b[1]};
        next().template take<1>(x);
        start_message(x, s);
        if (s + 1 < MS) fetch(s + 1);
        if constexpr (Attention) base::load_weights(weights, 0.5f);
#pragma unroll
        for (int k = 0; k < 3; k++)
            if (!Attention && p.degree != NULL) degree[k] = __ldg(p.degree + nodes[k]);
        wait<group_products>();
        settle(x);
        uint32_t slope[strip_tiles][2];
        base::template slopes<Gelu>(slope, x);
        if (s + 1 < MS) gradients(s).template arrive<1>();
        else gradients(s).template arrive<0>();
        if constexpr (Attention) {
            gradients(s).attend(x, weights, base::vectors() + s * strip, at::messages);
        } else { /* the factors of the gradients of a node's messages */
            const float by[2] = {__fdividef(0.5f, degree[1]), __fdividef(0.5f, degree[2])};
            gradients(s).combine(x, __fdividef(0.5f, degree[0]), by, rows.there);
        }
        base::multiply_slopes(x, slope);
        __syncwarp(); /* all have read where dx goes */
        store_strip(at::tile_dx + s, x);
        if (s + 1 < MS) fetch_pulls(s + 1);
    }

    /* Sums of de' (w2 z + c2). */
    __device__ void gate_sums(const float (&o)[D / 8][4]) const {
        const float *c2 = (const float *)(shared + at::c2) + column;
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            float4 add = *(const float4 *)(c2 + 16 * j), total = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 d = masked(rows.there[k], de[k][j]);
                total.x += d.x * (0.5f * o[2 * j][2 * k] + add.x);
                total.y += d.y * (0.5f * o[2 * j][2 * k + 1] + add.y);
                total.z += d.z * (0.5f * o[2 * j + 1][2 * k] + add.z);
                total.w += d.w * (0.5f * o[2 * j + 1][2 * k + 1] + add.w);
            }
            sum_columns(total, sums_of(at::kind_gate) + 16 * j);
        }
    }

    /* deb is complete but for the part from the mean: sums over the graph's edges, and the gradient
     * of e. */
    __device__ void norm_backward(float (&deb)[D / 8][4]) const {
        const float *mod = p.f.modulation + (size_t)rows.graph * p.f.ld_modulation + column;
        const float *dmean = p.dmean + (size_t)rows.graph * p.ld_dmean + column;
        const float share[2] = {rows.there[0] ? rows.inv_edges : 0,
                                rows.there[1] ? rows.inv_edges : 0};
        float sum[2] = {0, 0}, along[2] = {0, 0};
        uint32_t hat[2][sixteens][2]; /* e^ in bf16 */
#pragma unroll
        for (int j = 0; j < sixteens; j++) {
            float4 of_mean = __ldg((const float4 *)(dmean + 16 * j));
            float4 of_scale = __ldg((const float4 *)(mod + D + 16 * j));
            const float part[4] = {of_mean.x, of_mean.y, of_mean.z, of_mean.w};
            const float scale[4] = {of_scale.x, of_scale.y, of_scale.z, of_scale.w};
            float total[4] = {0, 0, 0, 0}, product[4] = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float h[4] = {e[k][j].x, e[k][j].y, e[k][j].z, e[k][j].w};
#pragma unroll
                for (int q = 0; q < 4; q++) {
                    float *value = &deb[2 * j + q / 2][2 * k + q % 2];
                    float d = *value + share[k] * part[q]; /* zero where there is no edge */
                    h[q] = (h[q] - mean[k]) * rho[k];
                    total[q] += d;
                    product[q] += d * h[q];
                    d *= 1 + scale[q];
                    sum[k] += d;
                    along[k] += d * h[q];
                    *value = d;
                }
                hat[k][j][0] = pack(h[0], h[1]);
                hat[k][j][1] = pack(h[2], h[3]);
            }
            sum_columns(make_float4(total[0], total[1], total[2], total[3]), sums_of(0) + 16 * j);
            sum_columns(make_float4(product[0], product[1], product[2], product[3]),
                        sums_of(1) + 16 * j);
        }
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float middle = quad_sum(sum[k]) / D, slant = quad_sum(along[k]) / D;
            middle *= rho[k];
            slant *= rho[k];
            if (!rows.there[k]) continue;
            float *to = p.f.out + (size_t)rows.row[k] * D + column;
#pragma unroll
            for (int j = 0; j < sixteens; j++) {
                float4 d = de[k][j];
                const float *first = &deb[2 * j][2 * k], *second = &deb[2 * j + 1][2 * k];
                uint32_t low = hat[k][j][0], high = hat[k][j][1];
                d.x += rho[k] * first[0] - middle - __uint_as_float(low << 16) * slant;
                d.y += rho[k] * first[1] - middle - __uint_as_float(low & 0xffff0000u) * slant;
                d.z += rho[k] * second[0] - middle - __uint_as_float(high << 16) * slant;
                d.w += rho[k] * second[1] - middle - __uint_as_float(high & 0xffff0000u) * slant;
                *(float4 *)(to + 16 * j) = d;
            }
        }
    }

    /* The products after the strips, and what follows from them. */
    __device__ void finish_rows() {
        refresh();
        float o[D / 8][4], deb[D / 8][4];
#pragma unroll
        for (int k = 0; k < 2; k++) load_row(de[k], row_of(p.f.out, k));
        start_update(o);
        start_deb(deb);
        wait<group_products, 1>();
        settle(o);
        gate_sums(o);
        refresh();
#pragma unroll
        for (int k = 0; k < 2; k++) load_row(e[k], row_of(p.f.e, k));
        wait<group_products>();
        settle(deb);
        norm_backward(deb);
    }

    /* A tile that has been opened; opens the one after it, or the last one again: a branch would
     * keep old rows alive. */
    __device__ void step(int pair, int last) {
        load(pair, last);
        publish();
        group_barrier(barrier_group + place);
#pragma unroll 1
        for (int s = 0; s < at::z_strips; s++) update_strip(s);
#pragma unroll 1
        for (int s = 0; s < MS; s++) message_strip(s);
        publish();
        group_barrier(barrier_group + place);
        signal(barrier_full + place);
        finish_rows();
        tile_segments segments = segments_of_tile(p.f.bundles, pair, last);
        open(pair + 4, last);
        group_barrier(barrier_group + place);
        refresh();
        sum_segments(segments);
    }

    __device__ void run() {
        for (int round = 0; round < base::rounds(); round++) {
            int first, last;
            base::chunk_of(round, place, &first, &last);
            open(first, last);
#pragma unroll 1
            for (int pair = first; pair < first + p.f.list_length; pair += 4) step(pair, last);
            next().template arrive<0>();
        }
    }
};

} // namespace wf_gpu::lean
