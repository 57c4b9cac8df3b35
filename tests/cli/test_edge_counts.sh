#!/bin/sh
# bench/edge_counts.py finds a left operand that a batch of products uses twice, and counts a role's loop.
. tests/cli/lib.sh
# listing OPERANDS: a kernel whose loop has a batch of products of these registers into R24, then one of R56 again.
listing() {
    printf '\t.section\t.text.%s,"ax"\n' _ZN4edge15backward_kernelILi2ELb0EEEvNS_13backward_argsE
    echo '        /*0010*/   USETMAXREG.TRY_ALLOC.CTAPOOL UP0, 0x98 ;'
    echo '.L_x_1:'
    echo '        /*0020*/   WARPGROUP.ARRIVE ;'
    for operand; do echo "        /*0030*/   HGMMA.64x64x16.F32.BF16 R24, $operand, gdesc[UR16].tnspB, R24 ;"; done
    echo '        /*0040*/   WARPGROUP.ARRIVE ;'
    echo '        /*0050*/   HGMMA.64x64x16.F32.BF16 R24, R56, gdesc[UR16].tnspB, RZ, !UPT ;'
    echo '        /*0060*/   @P0 BRA `(.L_x_1) ;'
}
listing R56 R60 R64 >"$scratch/right"
listing R56 R60 R56 >"$scratch/wrong"
expect right 0 "| Z2 | 152 | 64 | 7 | 6 |" sh -c "bench/edge_counts.py <$scratch/right"
expect wrong 1 "twice in a batch: Z2: HGMMA.64x64x16.F32.BF16 R24, R56, gdesc" sh -c "bench/edge_counts.py <$scratch/wrong"
sed 's/_ZN4edge15backward_kernel.*,/other_kernel,/' "$scratch/wrong" >"$scratch/other"
expect other-kernels 1 "twice in a batch: other_kernel: HGMMA" sh -c "bench/edge_counts.py <$scratch/other"
finish
