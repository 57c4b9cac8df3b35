/* lean_back_quarters: the computing warpgroups of the lean backward at D = 128, where a block has a
 * quarter of the hidden columns. Loading ahead, as at D <= 64, is slower here: 18.4 ms for the
 * backward of a step, against 16.1. */
#pragma once

#include "models/cuda/gmn_lean/lean_back.cuh"

namespace wf_gpu::lean {

template <int D, int Q, int MS, bool Gelu, bool Attention>
struct quarter_computer : computing<D, Q, MS> {
    static_assert(Q > 1, "deb leaves in quarters");
    using base = computing<D, Q, MS>;
    using at = layout<D, Q, MS>;
    using base::column;
    using base::fetch;
    using base::lane;
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

    __device__ explicit quarter_computer(const lean_gradient &args) : base(args) {}

    static __device__ void read_row(float4 (&v)[D / 16], const float *row) {
#pragma unroll
        for (int j = 0; j < D / 16; j++) v[j] = *(const float4 *)(row + 16 * j);
    }
    /* eb and do of the tile into their panels, once these are empty. The next tile's rows are being
     * loaded to L2. */
    __device__ void load(int next_upper, int next_lower) {
        refresh();
        const float *mod = p.f.modulation + (size_t)rows.graph * p.f.ld_modulation + column;
        float4 v[2][D / 16], d[2][D / 16];
#pragma unroll
        for (int k = 0; k < 2; k++) read_row(v[k], p.f.e + (size_t)rows.row[k] * D + column);
        prefetch_rows<D>(p.f.e, next_upper, next_lower);
        prefetch_rows<D>(p.f.out, next_upper, next_lower);
        meet(barrier_empty + place);
#pragma unroll
        for (int k = 0; k < 2; k++) {
            float mean, rho;
            normalise<D>(v[k], &mean, &rho);
        }
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 shift = __ldg((const float4 *)(mod + 16 * j));
            float4 scale = __ldg((const float4 *)(mod + D + 16 * j));
            store_fragment(
                tile(place, at::tile_eb), 16 * warp, j,
                fragment_of(modulated(v[0][j], scale, shift), modulated(v[1][j], scale, shift)));
        }
#pragma unroll
        for (int k = 0; k < 2; k++) read_row(d[k], p.f.out + (size_t)rows.row[k] * D + column);
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 by = __ldg((const float4 *)(mod + 2 * D + 16 * j));
            by = make_float4(0.5f + 0.5f * by.x, 0.5f + 0.5f * by.y, 0.5f + 0.5f * by.z,
                             0.5f + 0.5f * by.w);
            float4 upper = masked(rows.there[0], times(d[0][j], by));
            float4 lower = masked(rows.there[1], times(d[1][j], by));
            store_fragment(tile(place, at::tile_do), 16 * warp, j, fragment_of(upper, lower));
            if (j / (D / 16 / Q) == quarter)
                sum_columns(plus(upper, lower), sums_of(at::kind_do) + 16 * j);
        }
    }

    __device__ void update_strip(int s) {
        refresh();
        float x[strip_tiles][4], dz[strip_tiles][4];
        next().template take<0>(x);
        start_strip(x, dz, s);
        if (s + 1 < at::z_strips) fetch(MS + s + 1);
        else if (MS > 0) fetch(0);
        wait<group_products>();
        settle(x);
        settle(dz);
        base::template units<Gelu>(x, dz, s);
    }

    /* Half of that by which a node's messages pull, as slopes are doubled. */
    __device__ float pull(int node) const {
        return p.degree == NULL ? 0.5f : __fdividef(0.5f, p.degree[node]);
    }

    __device__ void message_strip(int s) {
        refresh();
        float x[strip_tiles][4], dm[strip_tiles][4];
        next().template take<0>(x);
        const float *of_a = p.dto[rows.from_a] + at::place(s, quarter);
        const float *of_b = p.dto[!rows.from_a] + at::place(s, quarter);
        next().fetch(of_a + (size_t)rows.a * p.ld_dto, of_b + (size_t)rows.b[0] * p.ld_dto,
                     of_b + (size_t)rows.b[1] * p.ld_dto);
        start_message(x, s);
        wait<group_products>();
        settle(x);
        uint32_t slope[strip_tiles][2];
        base::template slopes<Gelu>(slope, x);
        if constexpr (Attention) {
            float4 weights[2];
            base::load_weights(weights, 0.5f);
            next().template arrive<0>();
            next().attend(dm, weights, base::vectors() + s * strip, at::messages);
        } else {
            const float by[2] = {pull(rows.b[0]), pull(rows.b[1])};
            next().template arrive<0>();
            next().combine(dm, pull(rows.a), by, rows.there);
        }
        if (s + 1 < MS) fetch(s + 1);
        base::multiply_slopes(dm, slope);
        store_strip(at::tile_dx + s, dm);
    }

    /* Sums of de' (w2 z + c2). */
    __device__ void gate_sums() const {
        float o[D / 8][4];
        start_update(o);
        wait<group_products>();
        settle(o);
        const float *c2 = (const float *)(shared + at::c2) + column;
#pragma unroll
        for (int j = 0; j < D / 16; j++) {
            float4 add = *(const float4 *)(c2 + 16 * j), total = {0, 0, 0, 0};
#pragma unroll
            for (int k = 0; k < 2; k++) {
                float4 d =
                    masked(rows.there[k],
                           *(const float4 *)(p.f.out + (size_t)rows.row[k] * D + column + 16 * j));
                total.x += d.x * (0.5f * o[2 * j][2 * k] + add.x);
                total.y += d.y * (0.5f * o[2 * j][2 * k + 1] + add.y);
                total.z += d.z * (0.5f * o[2 * j + 1][2 * k] + add.z);
                total.w += d.w * (0.5f * o[2 * j + 1][2 * k + 1] + add.w);
            }
            sum_columns(total, sums_of(at::kind_gate) + 16 * j);
        }
    }

    __device__ void leave_quarter(const float (&deb)[D / 8][4]) const {
        uint2 *to = p.quarter_debs + (size_t)quarter * p.edges * (D / 4) + lane % 4;
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (!rows.there[k]) continue;
#pragma unroll
            for (int j = 0; j < D / 16; j++)
                to[(size_t)rows.row[k] * (D / 4) + 4 * j] =
                    make_uint2(pack(deb[2 * j][2 * k], deb[2 * j][2 * k + 1]),
                               pack(deb[2 * j + 1][2 * k], deb[2 * j + 1][2 * k + 1]));
        }
    }

    __device__ void step(int pair, int last) {
        lane_rows coming = rows_of_pair(p.f.bundles, pair + 4 + warp, last);
        rows = rows_of_pair(p.f.bundles, pair + warp, last);
        fetch(MS);
        load(coming.row[0], coming.row[1]);
        publish();
        group_barrier(barrier_group + place);
#pragma unroll 1
        for (int s = 0; s < at::z_strips; s++) update_strip(s);
#pragma unroll 1
        for (int s = 0; s < MS; s++) message_strip(s);
        publish();
        group_barrier(barrier_group + place);
        signal(barrier_full + place);
        refresh();
        gate_sums();
        refresh();
        float deb[D / 8][4];
        start_deb(deb);
        wait<group_products>();
        settle(deb);
        leave_quarter(deb);
        group_barrier(barrier_group + place);
        refresh();
        sum_segments(segments_of_tile(p.f.bundles, pair, last));
    }

    __device__ void run() {
        for (int round = 0; round < base::rounds(); round++) {
            int first, last;
            base::chunk_of(round, place, &first, &last);
#pragma unroll 1
            for (int pair = first; pair < first + p.f.list_length; pair += 4) step(pair, last);
        }
    }
};

} // namespace wf_gpu::lean
