#pragma once
// What `choir doctor` finds: lines with a remedy. The judgements are pure functions of facts, so
// that they can be tested on machines that are well.
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "choir/comm/mpi/mpi_session.hpp"
#include "choir/device/cuda.hpp"

namespace choir {

/// `info`: below what it should be, and nothing that its user has to mend.
enum class Health { ok, info, warning, error };

struct Finding {
  Health health = Health::ok;
  std::string name;    ///< "binding", "MPI", "all-reduce" ...
  std::string text;    ///< what is so
  std::string remedy;  ///< what to do; only ok and info may have none
};

/// One rank, as the operating system sees it.
struct RankFacts {
  int rank = 0, local_rank = 0, node = 0;
  std::string host;
  std::vector<int> cores;  ///< that it may run on (affinity mask), ascending
  int threads = 1;
};

/// {0, 1, 2, 5} -> "0-2,5"
std::string core_list(const std::vector<int>& cores);

/// Ranks of one host must not have more threads than the cores that they share, and no rank more
/// threads than its own cores.
std::vector<Finding> judge_binding(const std::vector<RankFacts>& ranks);
/// Hosts and ranks per host.
Finding judge_ranks(const std::vector<RankFacts>& ranks);
/// mpi.h against the library that runs: "Open MPI 4.1.4" must occur in "Open MPI v4.1.4, ...", the
/// patch number aside.
Finding judge_mpi(const std::string& compiled, const std::string& running);
/// openblas_get_parallel: 0 serial, 1 pthread, 2 OpenMP; nothing where the library is another one.
/// `avx2`: the processor has it, so kernels for older ones (named in `config`) are a mistake.
Finding judge_blas(std::optional<int> flavour, const std::string& config, bool avx2);

/// What was measured on all ranks together, and on what.
struct SpeedFacts {
  double f64 = 0, f32 = 0, bf16 = 0;  ///< FLOP/s of products
  std::string libraries[3];           ///< that computed them
  double copy = 0;                    ///< bytes/s read and written
  int cores = 1;                      ///< with arithmetic units of their own, at work
  double clock = 0;                   ///< Hz under this load, the mean of ranks; 0: not known
  bool avx2 = true;                   ///< or AVX-512
  double busy = 0;                    ///< share of the time that cores were missing
};
/// "products" and "memory", as a ratio of what such cores should do at least: 16 FLOP a cycle in
/// f64 and 32 in f32 (a unit of 512 bits or two of 256 that multiply and add; without AVX2 4 and
/// 8), and 2 bytes a cycle copied by each of at most 8 cores. Half of it is the least that is well.
std::vector<Finding> judge_speed(const SpeedFacts& facts);
/// "all-reduce": bus bandwidth in bytes/s over MPI against a third of what each rank copies (two
/// reads and a write) within a node, against the network's rate (`link`, bytes/s; 0: not known)
/// between nodes. A quarter is the least that is well. `busy` as in SpeedFacts.
Finding judge_all_reduce(double bus, int ranks, int nodes, double copy, double link, double busy);
/// A library that is opened when the program runs.
struct GpuLibrary {
  std::string name;
  std::string version;  ///< empty: not found
  std::string reason;   ///< the loader's words then
  std::string without;  ///< what happens without it
};
/// Cards and their libraries; `device_files` in /dev show a driver even where CUDA does not start.
std::vector<Finding> judge_gpus(const cuda::Availability& found, int device_files,
                                const std::vector<GpuLibrary>& libraries);
/// Where checkpoints go: free bytes and seconds of one fsync.
Finding judge_file_system(const std::string& folder, const std::string& type, double free_bytes,
                          double fsync_seconds);
/// Files by which ranks of Open MPI share memory, of this user: those that a process has mapped,
/// and all. What killed ranks left keeps its memory until somebody removes it.
Finding judge_shared_memory(const std::vector<std::string>& segments,
                            const std::vector<std::string>& mapped, double bytes_of_dead);
/// Seconds each rank's clock is ahead of rank 0's.
Finding judge_clocks(const std::vector<double>& ahead);
/// The losses of the tiny model, and every rank's digest of its parameters.
Finding judge_training(const std::vector<double>& losses, const std::vector<std::uint64_t>& digests,
                       double seconds);

/// What tells where a machine stands: environment and programs on the PATH.
struct BatchFacts {
  std::string nersc_host;  ///< NERSC_HOST, which only NERSC sets
  std::string host;        ///< with its domain, or PBS_O_HOST: where the job was submitted
  bool slurm = false;      ///< sbatch, or inside of a job
  bool pbs = false;        ///< qsub, or inside of a job
};
/// Which file of jobs/ fits.
Finding judge_batch_system(const BatchFacts& facts);

/// Lines, then "N errors, N warnings".
std::string to_text(const std::vector<Finding>& findings);
std::string to_json(const std::vector<Finding>& findings, const std::vector<RankFacts>& ranks);
bool has_error(const std::vector<Finding>& findings);

// What is looked at; `findings` are added at rank 0, all functions are collective over the mesh.
std::vector<RankFacts> gather_ranks(Mesh& mesh);
std::vector<Finding> examine_software(const MpiSession& session);
Finding examine_batch_system();  // local
std::vector<Finding> examine_processor();
std::vector<Finding> examine_speed(Mesh& mesh);
Finding examine_clocks(Communicator& world);
Finding examine_shared_memory();  // local
Finding examine_file_system(Communicator& world, const std::string& folder);

}  // namespace choir
