"""dopri5 against SciPy's RK45 on equations with known solutions: errors, and evaluations within 25
%."""
import ctypes as C
import sys

import numpy as np
from scipy.integrate import solve_ivp

from flow_internals import library, report

LIB = library()
FN = C.CFUNCTYPE(
    C.c_int, C.c_void_p, C.c_int, C.POINTER(C.c_int), C.POINTER(C.c_double), C.POINTER(C.c_double),
    C.POINTER(C.c_double),
)
LIB.oracle_ode.argtypes = [
    C.c_int, C.c_int, C.c_double, C.c_int, C.c_size_t, C.c_double, C.c_double, FN, C.c_void_p,
    C.c_void_p,
]
DOPRI5 = 3


def solve(rhs, starts, t0, t1, tolerance):
    """Final states of the systems that start at `starts` (systems, dim), and (evaluations,
    accepted, rejected)."""
    y = np.array(starts, dtype=np.float64, order="C")
    systems, dim = y.shape

    def fn(_, n, which, t, state, out):
        rows = np.ctypeslib.as_array(state, (n, dim))
        slopes = np.ctypeslib.as_array(out, (n, dim))
        for r in range(n):
            slopes[r] = rhs(t[r], rows[r])
        return 0

    stats = (C.c_size_t * 3)()
    status = LIB.oracle_ode(
        DOPRI5, 0, tolerance, systems, dim, t0, t1, FN(fn), y.ctypes.data, stats
    )
    assert status == 0, status
    return y, list(stats)


def swing(t, y):
    return np.array([y[0] * 5 * np.cos(5 * t), -y[1] * 5 * np.cos(5 * t)])


def swing_exact(t, y0):
    return y0 * np.exp(np.array([np.sin(5 * t), -np.sin(5 * t)]))


A = np.array([[-0.5, -12.0, 0, 0], [12.0, -0.5, 0, 0], [0, 0, -1.0, 1.0], [0, 0, 0, -3.0]])


def linear(_, y):
    return A @ y


def linear_exact(t, y0):
    values, vectors = np.linalg.eig(A)
    return (vectors @ (np.exp(values * t) * np.linalg.solve(vectors, y0.astype(complex)))).real


def logistic(t, y):
    return 8 * y * (1 - y)


def logistic_exact(t, y0):
    return y0 * np.exp(8 * t) / (1 - y0 + y0 * np.exp(8 * t))


CASES = [("swing", swing, swing_exact, np.array([1.0, 2.0])),
         ("linear", linear, linear_exact, np.array([1.0, 0.0, 0.5, -1.0])),
         ("logistic", logistic, logistic_exact, np.array([0.01, 0.2, 0.9]))]


def main():
    good = True
    for name, rhs, exact, start in CASES:
        for tolerance in (1e-3, 1e-5, 1e-7, 1e-9):
            y, (evaluations, _, _) = solve(rhs, start[None, :], 0.0, 1.0, tolerance)
            theirs = solve_ivp(rhs, (0, 1), start, method="RK45", rtol=tolerance, atol=tolerance)
            truth = exact(1.0, start)
            scale = np.maximum(1, np.abs(truth))
            error = np.max(np.abs(y[0] - truth) / scale)
            share = evaluations / theirs.nfev
            good &= report(
                f"ode_{name}_{tolerance:g}",
                error <= 10 * tolerance and 0.75 <= share <= 1.25,
                f"error {error:.2e}, {evaluations} evaluations, SciPy {theirs.nfev}",
            )
    # Systems of one batch take the steps they would take alone.
    rng = np.random.default_rng(1)
    starts = rng.uniform(0.01, 0.99, (5, 3))
    together, stats = solve(logistic, starts, 0.0, 1.0, 1e-6)
    alone = [solve(logistic, start[None, :], 0.0, 1.0, 1e-6) for start in starts]
    same = all(np.array_equal(together[i], alone[i][0][0]) for i in range(5))
    good &= report("ode_batch", same and stats[0] == sum(a[1][0] for a in alone))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
