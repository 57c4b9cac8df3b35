/* eigen: the eigenvectors of a symmetric matrix.
 *
 *   C = Q T Q'     Householder reflections make C tridiagonal; their product is Q
 *   G T G' = L     implicitly shifted QR steps (Wilkinson's shift) make T diagonal: rotations of
 *                  neighbouring rows
 *   C = (G Q')' L (G Q')   rows of G Q' are the eigenvectors
 * after Golub and Van Loan, Matrix Computations, chapter 8. Some 8 n^3 operations. Each row or
 * strip of columns is computed by one thread, so the result does not depend on the number of
 * threads. */
#pragma once

#include "base/status.h"

/* matrix (n, n), symmetric, is replaced by its eigenvectors as rows, each with its largest
 * component positive. values (n): the eigenvalues, largest first, accurate to rounding of the
 * largest. meter may be NULL; otherwise its progress is at `done`, and this call adds `share` to
 * it. */
wf_status wf_eigen(wf_ctx *ctx, double *matrix, int n, double *values, wf_meter *meter, double done,
                   double share);
