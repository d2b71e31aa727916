#pragma once
// Findings of `choir doctor`: lines with a remedy. The judgements are pure functions of facts, so
// that tests can cover bad machines on good ones.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "choir/comm/mesh/mesh.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/device/cuda.hpp"

namespace choir {

/// `info`: below expectation, but the user cannot repair it.
enum class Health { ok, info, warning, error };

struct Finding {
  Health health = Health::ok;
  std::string name;    ///< "binding", "MPI", "all-reduce" ...
  std::string text;    ///< the observation
  std::string remedy;  ///< the remedy; only ok and info may have none
};

/// One rank as the operating system sees it.
struct RankFacts {
  int rank = 0, local_rank = 0, node = 0;
  std::string host;
  std::vector<int> cores;  ///< cores that it may run on (affinity mask), ascending
  int threads = 1;
};

/// Formats a list of cores: {0, 1, 2, 5} -> "0-2,5".
std::string core_list(const std::vector<int>& cores);

/// Warns if the ranks of one host have more threads than the cores that they share, or a rank more
/// threads than its own cores.
std::vector<Finding> judge_binding(const std::vector<RankFacts>& ranks);
/// Lists hosts and ranks per host.
Finding judge_ranks(const std::vector<RankFacts>& ranks);
/// Compares mpi.h with the library that runs: "Open MPI 4.1.4" must occur in "Open MPI v4.1.4,
/// ...", apart from the patch number.
Finding judge_mpi(const std::string& compiled, const std::string& running);
/// `flavour` is the result of openblas_get_parallel: 0 serial, 1 pthread, 2 OpenMP; nullopt if the
/// library is not OpenBLAS. `avx2`: the processor has AVX2, so kernels for older processors (named
/// in `config`) are a mistake.
Finding judge_blas(std::optional<int> flavour, const std::string& config, bool avx2);

/// Measurements on all ranks together, and the hardware they ran on.
struct SpeedFacts {
  double f64 = 0, f32 = 0, bf16 = 0;  ///< FLOP/s of products
  std::string libraries[3];           ///< the libraries that computed them
  double copy = 0;                    ///< bytes/s read and written
  int cores = 1;                      ///< cores at work that have arithmetic units of their own
  double clock = 0;                   ///< Hz under this load, the mean over the ranks; 0: unknown
  bool avx2 = true;                   ///< the processor has AVX2 or AVX-512
  double busy = 0;                    ///< share of the time that threads waited for a core
};
/// Returns "products" and "memory", as ratios of the least that such cores should reach: 16 FLOP a
/// cycle in f64 and 32 in f32 (one unit of 512 bits or two of 256 that multiply and add; without
/// AVX2 4 and 8), and 2 bytes a cycle copied by each of at most 8 cores. Half of it is good enough.
std::vector<Finding> judge_speed(const SpeedFacts& facts);
/// Returns "all-reduce": the bus bandwidth in bytes/s over MPI. Within a node it is compared with a
/// third of the copy rate of a rank (two reads and a write), between nodes with the network's rate
/// (`link`, bytes/s; 0: unknown). A quarter of it is good enough. `busy` as in SpeedFacts.
Finding judge_all_reduce(double bus, int ranks, int nodes, double copy, double link, double busy);
/// A library that is opened at run time.
struct GpuLibrary {
  std::string name;
  std::string version;  ///< empty: not found
  std::string reason;   ///< then the loader's error message
  std::string without;  ///< the consequence of its absence
};
/// Judges GPUs and their libraries; `device_files` in /dev show a driver even if CUDA does not
/// start.
std::vector<Finding> judge_gpus(const cuda::Availability& found, int device_files,
                                const std::vector<GpuLibrary>& libraries);
/// Facts about the paths between GPUs that may slow communication, as the machine reports them.
struct GpuLinkFacts {
  std::string isolation;                ///< isolation_warning() of the node
  std::vector<std::string> denied;      ///< files of GPUs that this process may not open
  std::vector<std::string> apart;       ///< visible GPUs without P2P, "0-1"
  std::vector<std::string> slices;      ///< names of visible GPUs that are slices (MIG)
  std::vector<std::string> translated;  ///< PCI addresses of GPUs behind a translating IOMMU
  int cards = 1;                        ///< of the node, as far as its ranks see them
  bool infiniband = false;              ///< the node has RDMA network adapters
  bool gpu_direct = false;              ///< the driver lets them access GPU memory
  std::map<std::string, std::string> environment{};  ///< the variables NCCL_*
};
/// The facts of this machine; its files are read below `root`, which is "" except in tests. Local.
GpuLinkFacts gpu_link_facts(const cuda::Availability& found, const std::string& root);
std::map<std::string, std::string> nccl_environment();  // local
/// A warning with a remedy for each fact that slows NCCL, or one finding that all is well. Pure.
std::vector<Finding> judge_gpu_links(const GpuLinkFacts& facts);
/// Judges the file system of the checkpoints by its free bytes and the seconds of one fsync.
Finding judge_file_system(const std::string& folder, const std::string& type, double free_bytes,
                          double fsync_seconds);
/// Judges the shared-memory files of Open MPI that belong to this user: those that a process has
/// mapped, and all. Files of killed ranks keep their memory until somebody removes them.
Finding judge_shared_memory(const std::vector<std::string>& segments,
                            const std::vector<std::string>& mapped, double bytes_of_dead);
/// `ahead`: seconds by which each rank's clock is ahead of rank 0's.
Finding judge_clocks(const std::vector<double>& ahead);
/// Judges the losses of the tiny model and the digest of every rank's parameters.
Finding judge_training(const std::vector<double>& losses, const std::vector<std::uint64_t>& digests,
                       double seconds);

/// The environment and the programs on the PATH that identify a machine.
struct BatchFacts {
  std::string nersc_host;  ///< NERSC_HOST, which only NERSC sets
  std::string host;        ///< with its domain, or PBS_O_HOST, the host where the job was submitted
  bool slurm = false;      ///< sbatch exists, or this is a SLURM job
  bool pbs = false;        ///< qsub exists, or this is a PBS job
};
/// Names the file of jobs/ that fits.
Finding judge_batch_system(const BatchFacts& facts);

/// "N errors, N warnings", then the findings as lines.
std::string to_text(const std::vector<Finding>& findings);
std::string to_json(const std::vector<Finding>& findings, const std::vector<RankFacts>& ranks);
bool has_error(const std::vector<Finding>& findings);

// The examinations. All are collective over the mesh unless marked local; rank 0 gets the findings.
std::vector<RankFacts> gather_ranks(Mesh& mesh);
std::vector<Finding> examine_software(const MpiSession& session);
/// Advice where bf16 products are not those of oneDNN, by whether this program has oneDNN and the
/// processor AVX-512. Pure.
std::string bf16_advice(bool has_library, bool has_avx512);
std::vector<Finding> examine_gpu_links(Mesh& mesh);
Finding examine_batch_system();  // local
std::vector<Finding> examine_processor();
std::vector<Finding> examine_speed(Mesh& mesh);
Finding examine_clocks(Communicator& world);
Finding examine_shared_memory();  // local
Finding examine_file_system(Communicator& world, const std::string& folder);

}  // namespace choir
