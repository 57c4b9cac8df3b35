/* eigen: the eigenvectors of a symmetric matrix, by rotations.
 *
 * One-sided Jacobi: pairs of rows are rotated until all rows of J C are orthogonal. As C is symmetric, they then are its
 * eigenvectors times their eigenvalues. A round of a tournament pairs every row with another; its rotations touch different
 * rows and run side by side, so the result does not depend on the number of threads. Some ten sweeps of 6 n^3 operations. */
#ifndef WF_FLOW_EIGEN_H
#define WF_FLOW_EIGEN_H

#include "base/status.h"

/* matrix (n, n), symmetric and positive definite, becomes its eigenvectors as rows; values (n) are their eigenvalues, the largest
 * first. */
wf_status wf_eigen(wf_ctx *ctx, double *matrix, int n, double *values);

#endif
