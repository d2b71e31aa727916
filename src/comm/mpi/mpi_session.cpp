#include "src/comm/mpi/mpi_session.hpp"

#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/comm/mpi/mpi_session.hpp"
#include "src/core/process.hpp"
#include "src/core/signals.hpp"

namespace choir {
namespace {

/// Environment variables that are set while the object lives, unless the user has set them.
class Defaults {
 public:
  void set(const char* name, const char* value) {
    if (!has(name) && setenv(name, value, 0) == 0) names_.push_back(name);
  }
  static bool has(const char* name) { return std::getenv(name) != nullptr; }
  ~Defaults() {
    for (const char* name : names_) unsetenv(name);
  }

 private:
  std::vector<const char*> names_;
};

/// Open MPI 4 prepares a process without a launcher for spawning others: it starts a daemon
/// (`orted`) and examines every network, which costs each command on one rank half a second.
/// Processes without a daemon would share a session folder, and one that ends removes it from
/// another that starts, so the folder is switched off too. Other MPIs ignore these variables.
void expect_to_be_alone(Defaults& environment) {
  environment.set("OMPI_MCA_ess_singleton_isolated", "1");
  environment.set("OMPI_MCA_orte_create_session_dirs", "0");
  environment.set("OMPI_MCA_pml", "ob1");
}

/// Open MPI sends messages up to 64 KiB over TCP at once; for longer ones it asks the receiver,
/// whose answer queues behind the data that the receiver sends itself. These settings also send the
/// messages of MpiCommunicator at once. The send size must be as large as the eager limit, so a
/// user who sets one of the two sets both.
void expect_messages_both_ways(Defaults& environment) {
  constexpr const char *kEager = "OMPI_MCA_btl_tcp_eager_limit",
                       *kRoom = "OMPI_MCA_btl_tcp_max_send_size";
  if (Defaults::has(kEager) || Defaults::has(kRoom)) return;
  constexpr std::size_t kHeaders = 4096;
  const std::string bytes = std::to_string(MpiOptions{}.message_bytes + kHeaders);
  environment.set(kEager, bytes.c_str());
  environment.set(kRoom, bytes.c_str());
}

/// Open MPI's nonblocking all-reduce in place, which activations use, is a binomial tree for every
/// size: everything is sent to one rank and back. Over a link that takes twice as long for two
/// ranks (measured: 919 ms per step, 473 with Rabenseifner's algorithm), and more for more ranks.
void expect_large_sums(Defaults& environment) {
  environment.set("OMPI_MCA_coll_libnbc_iallreduce_algorithm", "3");  // Rabenseifner's algorithm
}

}  // namespace

MpiSession::MpiSession(int* argc, char*** argv) : unwinding_(std::uncaught_exceptions()) {
  int started = 0;
  MPI_Initialized(&started);
  CHOIR_CHECK(started == 0, "MPI is already initialised");
  Defaults environment;
  if (!launcher_world_size()) expect_to_be_alone(environment);
  expect_messages_both_ways(environment);
  expect_large_sums(environment);
  // Open MPI's shared file pointers, which choir does not use, need a session folder and semaphores
  // in /dev/shm; without these, opening a file prints warnings or fails. The variable is read when
  // the first file is opened, so it stays set.
  setenv("OMPI_MCA_sharedfp", "^sm", 0);
  const int code = MPI_Init_thread(argc, argv, MPI_THREAD_MULTIPLE, &provided_);
  if (code != MPI_SUCCESS)
    throw CommError("MPI_Init_thread failed: " + mpi_text(code),
                    "start through the mpiexec (srun, aprun) of the MPI this program is linked to");
  use_alternate_stacks();  // for the handlers with which Open MPI reports a crash
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(MPI_COMM_SELF, MPI_ERRORS_RETURN);
  mpi_check(MPI_Comm_rank(MPI_COMM_WORLD, &rank_), "MPI_Comm_rank", "world");
  mpi_check(MPI_Comm_size(MPI_COMM_WORLD, &size_), "MPI_Comm_size", "world");
  host_ = host_name();
  give_way_on_a_crowded_node();
}

MpiSession::~MpiSession() {
  int finished = 0;
  MPI_Finalized(&finished);
  if (finished != 0) return;
  if (std::uncaught_exceptions() > unwinding_ && size_ > 1) abort(ExitCode::other);
  MPI_Finalize();
}

std::string MpiSession::thread_level() const {
  if (provided_ == MPI_THREAD_MULTIPLE) return "multiple";
  if (provided_ == MPI_THREAD_SERIALIZED) return "serialized";
  if (provided_ == MPI_THREAD_FUNNELED) return "funneled";
  return "single";
}

bool MpiSession::thread_multiple() const {
  return provided_ == MPI_THREAD_MULTIPLE;
}

bool mpi_serves_threads() {
  int started = 0, level = MPI_THREAD_SINGLE;
  MPI_Initialized(&started);
  return started != 0 && MPI_Query_thread(&level) == MPI_SUCCESS && level == MPI_THREAD_MULTIPLE;
}

std::string MpiSession::library_version() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING + 1> text{};
  int length = 0;
  if (MPI_Get_library_version(text.data(), &length) != MPI_SUCCESS) return "unknown MPI";
  const std::string whole(text.data());
  return whole.substr(0, whole.find('\n'));
}

void MpiSession::abort(int exit_code) {
  int started = 0, finished = 0;
  MPI_Initialized(&started);
  MPI_Finalized(&finished);
  std::fflush(nullptr);
  // Open MPI's mpiexec ends all ranks when one exits with an error, and a plain exit is safer than
  // MPI_Abort: with PMIx 4.2 one abort in thirty leaves mpiexec locked in PMIx_server_finalize (a
  // mutex used after it was freed) with all ranks dead; with an exit it is one in two hundred. srun
  // and other launchers need MPI_Abort.
  if (started != 0 && finished == 0 && std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) {
    // MPICH's mpiexec ends at once and would lose the last output: the reason of the failure.
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    MPI_Abort(MPI_COMM_WORLD, exit_code);
  }
  std::_Exit(exit_code);
}

std::optional<int> launcher_world_size(const EnvironmentLookup& lookup) {
  const auto read = [&](const char* name) -> std::optional<int> {
    const char* text = lookup ? lookup(name) : std::getenv(name);
    if (text == nullptr) return std::nullopt;
    int value = 0;
    const char* end = text + std::strlen(text);
    const auto [stop, error] = std::from_chars(text, end, value);
    if (error != std::errc{} || stop != end || value < 1) return std::nullopt;
    return value;
  };
  // The variables of MPI launchers come first: under SLURM an mpiexec starts its daemons as a step
  // of srun.
  for (const char* name : {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PALS_SIZE", "MV2_COMM_WORLD_SIZE",
                           "FLUX_JOB_SIZE", "SLURM_STEP_NUM_TASKS"})
    if (const auto value = read(name)) return value;
  if (read("SLURM_STEP_ID") || (lookup ? lookup("SLURM_STEP_ID") : std::getenv("SLURM_STEP_ID")))
    return read("SLURM_NTASKS");
  return std::nullopt;
}

std::optional<std::string> wrong_launcher(int mpi_size, const EnvironmentLookup& lookup) {
  const auto started = launcher_world_size(lookup);
  if (!started || *started == 1 || mpi_size != 1) return std::nullopt;
  return fmt::format(
      "{} independent 1-rank jobs: wrong launcher. The launcher started {} processes but each of "
      "them "
      "sees a world of 1 rank: use the mpiexec (or srun --mpi=...) that belongs to this MPI "
      "library ({})",
      *started, *started, MpiSession::library_version());
}

}  // namespace choir
