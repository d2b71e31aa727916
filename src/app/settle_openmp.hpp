#pragma once
// What the environment says of OpenMP, before anything is computed.

namespace choir {

/// Sets right what libgomp reads of the environment before main(), for which the program starts
/// once more, as the same process.
///
/// Threads that wait for others look for work some microseconds long, then they sleep. libgomp's 3
/// ms keep a core from whoever should have it: with one of two cores busy, a FastConformer trained
/// at two thirds of the speed (bench/results/2026-11-26-busy-cores.txt).
///
/// Teams are as large as is asked for: in a smaller one (OMP_DYNAMIC, OMP_THREAD_LIMIT,
/// OMP_MAX_ACTIVE_LEVELS=0) oneDNN leaves undone what the missing threads were to multiply, and
/// nobody is told.
void settle_openmp(char** argv);

}  // namespace choir
