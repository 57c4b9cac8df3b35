#!/bin/sh
# bench/operand_sources.py finds a left operand of a product that machine code makes of another
# batch's accumulators than PTX does, here of one batch for both of two pieces.
. tests/cli/lib.sh
cat >"$scratch/ptx" <<'P'
.visible .entry kernel(
	.param .u64 p
)
{
	setmaxnreg.inc.sync.aligned.u32 152;
	wgmma.fence.sync.aligned;
	{.reg .pred p; setp.ne.b32 p, %r9, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%f0,%f1,%f2,%f3,%f4,%f5,%f6,%f7}, {%r1,%r2,%r3,%r4}, %rd1, p, 1, 1, 0;}
	cvt.rn.bf16x2.f32 %r11, %f1, %f0;
	ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1, %r2, %r3, %r4}, [%r5];
	wgmma.fence.sync.aligned;
	{.reg .pred p; setp.ne.b32 p, %r9, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%f10,%f11,%f12,%f13,%f14,%f15,%f16,%f17}, {%r1,%r2,%r3,%r4}, %rd1, p, 1, 1, 0;}
	cvt.rn.bf16x2.f32 %r12, %f11, %f10;
	mov.b32 %r13, %r11;
	wgmma.fence.sync.aligned;
	{.reg .pred p; setp.ne.b32 p, %r9, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%f20,%f21,%f22,%f23,%f24,%f25,%f26,%f27}, {%r13,%r13,%r13,%r13}, %rd1, p, 1, 1, 0;}
	{.reg .pred p; setp.ne.b32 p, %r9, 0; wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {%f20,%f21,%f22,%f23,%f24,%f25,%f26,%f27}, {%r12,%r12,%r12,%r12}, %rd1, p, 1, 1, 0;}
	ret;
}
P
# listing SOURCE: the first piece's operand is packed from R24 (batch 1) or from R40 (batch 2).
listing() {
    printf '\t.section\t.text.kernel,"ax"\n'
    sed 's,^,        /*0010*/ ,' <<S
USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x98 ;
WARPGROUP.ARRIVE ;
HGMMA.64x16x16.F32.BF16 R24, R4, gdesc[UR4], RZ, !UPT, gsb0 ;
LDSM.16.M88.4 R4, [R8] ;
WARPGROUP.ARRIVE ;
HGMMA.64x16x16.F32.BF16 R40, R4, gdesc[UR4], RZ, !UPT, gsb0 ;
PRMT R40, R41, 0x7610, R40 ;
F2FP.BF16.F32.PACK_AB R12, R$1, R$1 ;
IMAD.MOV.U32 R13, RZ, RZ, R12 ;
MOV R14, R12 ;
MOV R15, R12 ;
F2FP.BF16.F32.PACK_AB R16, R41, R40 ;
HADD2.F32 R17, -RZ, R16.H1_H1 ;
MOV R18, R16 ;
MOV R19, R16 ;
WARPGROUP.ARRIVE ;
HGMMA.64x16x16.F32.BF16 R56, R12, gdesc[UR4], RZ, !UPT ;
HGMMA.64x16x16.F32.BF16 R56, R16, gdesc[UR4], R56, gsb0 ;
S
}
listing 24 >"$scratch/right"
listing 40 >"$scratch/wrong"
run="bench/operand_sources.py $scratch/ptx"
expect right 0 "kernel (152 registers): 4 products, 4 left operands in registers, 2 made of" \
    sh -c "$run $scratch/right"
expect wrong 1 "product 3: left operand of batches [1], in machine code of [2]" \
    sh -c "$run $scratch/wrong"
sed '/R56, R12/d' "$scratch/right" >"$scratch/fewer"
expect fewer 1 "machine code has other products: 3" sh -c "$run $scratch/fewer"
expect usage 1 "usage: operand_sources.py" bench/operand_sources.py
finish
