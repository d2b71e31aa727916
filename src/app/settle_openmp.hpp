#pragma once
// Corrects OpenMP settings of the environment before anything is computed.

namespace choir {

/// Corrects the environment variables that libgomp reads before main(); if one must change, the
/// program executes itself again as the same process.
///
/// Threads that wait for others poll for some microseconds and then sleep. libgomp's default of 3
/// ms keeps a core from other work: with one of two cores busy, a FastConformer trained at two
/// thirds of the speed (bench/results/2026-11-26-busy-cores.txt).
///
/// Teams must have the requested size: in a smaller one (OMP_DYNAMIC, OMP_THREAD_LIMIT,
/// OMP_MAX_ACTIVE_LEVELS=0) oneDNN silently skips the products of the missing threads.
void settle_openmp(char** argv);

}  // namespace choir
