// Examination of the installation: libraries, GPUs, the processor, the batch system (by the signs
// that jobs/lib/place.sh uses), and the cores of the ranks.
#include <dlfcn.h>
#include <fmt/core.h>
#include <omp.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "choir_features.hpp"
#include "kernels/gemm/gemm.hpp"
#include "src/comm/agreement.hpp"
#include "src/comm/mpi/mpi_communicator.hpp"
#include "src/comm/nccl/nccl_communicator.hpp"
#include "src/core/build_info.hpp"
#include "src/core/json_value.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/device/cpu_device.hpp"
#include "src/lab/doctor/doctor.hpp"
#include "src/store/open.hpp"
#ifdef CHOIR_HAVE_HWLOC
#include <hwloc.h>
#endif

namespace choir {
namespace {

std::string compiled_mpi() {
#if defined(OMPI_MAJOR_VERSION)
  return fmt::format("Open MPI {}.{}.{}", OMPI_MAJOR_VERSION, OMPI_MINOR_VERSION,
                     OMPI_RELEASE_VERSION);
#elif defined(MPICH_VERSION)
  return "MPICH " MPICH_VERSION;
#else
  return fmt::format("MPI {}.{}", MPI_VERSION, MPI_SUBVERSION);
#endif
}

Finding examine_blas() {
  // These functions are looked up by name, because another CBLAS does not have them.
  const auto parallel = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_parallel"));
  const auto config = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_config"));
  if (!parallel || !config) return judge_blas(std::nullopt, "", false);
  return judge_blas(parallel(), config(), cpu_features().avx2);
}

Finding examine_hdf5() {
  const auto [running, compiled] = hdf5_versions();
  if (running == compiled) return {Health::ok, "HDF5", running, ""};
  return {Health::error, "HDF5", fmt::format("{}, compiled with {}", running, compiled),
          "load the HDF5 it was built with, or `make clean && make`"};
}

std::string topology() {
#ifdef CHOIR_HAVE_HWLOC
  hwloc_topology_t machine;
  if (hwloc_topology_init(&machine) != 0) return "";
  std::string text;
  if (hwloc_topology_load(machine) == 0) {
    const auto count = [&](hwloc_obj_type_t type) {
      return hwloc_get_nbobjs_by_type(machine, type);
    };
    text = fmt::format("; {}, {}, {}, {}", counted(count(HWLOC_OBJ_PACKAGE), "package"),
                       counted(count(HWLOC_OBJ_NUMANODE), "NUMA node"),
                       counted(count(HWLOC_OBJ_CORE), "core"),
                       counted(count(HWLOC_OBJ_PU), "hardware thread"));
  }
  hwloc_topology_destroy(machine);
  return text;
#else
  return "";
#endif
}

int nvidia_devices() {
  std::error_code ignored;
  int devices = 0;
  while (std::filesystem::exists(fmt::format("/dev/nvidia{}", devices), ignored)) ++devices;
  return devices;
}

/// A library that reports its version as one number, major * `unit` + minor * 100 (cuDNN 9 and
/// cuBLAS).
GpuLibrary numbered(const std::string& name, std::initializer_list<const char*> sonames,
                    const char* function, std::size_t unit, const std::string& without) {
  SharedLibrary library(name, sonames);
  std::size_t (*version)() = nullptr;
  library.find(version, function);
  if (!library.loaded())
    return {.name = name, .version = {}, .reason = library.reason(), .without = without};
  const std::size_t number = version();
  return {.name = name,
          .version = fmt::format("{}.{}.{}", number / unit, number % unit / 100, number % 100),
          .reason = {},
          .without = without};
}

std::vector<GpuLibrary> find_libraries() {
  const NcclAvailability nccl = nccl_availability();
  return {numbered("cuBLASLt", {"libcublasLt.so.13", "libcublasLt.so.12"}, "cublasLtGetVersion",
                   10000, "products by choir's own kernels"),
          numbered("cuDNN", {"libcudnn.so.9"}, "cudnnGetVersion", 10000,
                   "attention by choir's own kernels"),
          {.name = "NCCL",
           .version = nccl.version,
           .reason = nccl.reason,
           .without = "GPUs communicate through host memory"}};
}

#ifdef CHOIR_HAVE_ONEDNN
constexpr bool kHasOneDnn = true;
#else
constexpr bool kHasOneDnn = false;
#endif

std::string environment(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

bool on_path(const std::string& program) {
  std::istringstream path(environment("PATH"));
  for (std::string folder; std::getline(path, folder, ':');)
    if (access((folder + "/" + program).c_str(), X_OK) == 0) return true;
  return false;
}

std::vector<Finding> examine_gpus() {
  const cuda::Availability found = cuda::availability();
  // A build without CUDA does not use them.
  const bool built = !found.toolkit.empty();
  return judge_gpus(found, nvidia_devices(), built ? find_libraries() : std::vector<GpuLibrary>{});
}

}  // namespace

std::string bf16_advice(bool has_library, bool has_avx512) {
  if (has_avx512 && !has_library)
    return "install libdnnl-dev (or `make ONEDNN=DIR`) and build again";
  return fmt::format(
      "train with train.precision=fp32 here: the bf16 of oneDNN{} needs AVX-512, "
      "which this processor does not have",
      has_library ? ", which is built in," : "");
}

std::vector<Finding> examine_software(const MpiSession& session) {
  std::vector<Finding> findings{
      {Health::ok, "choir",
       fmt::format("{}, {}, -march={}", build_revision(), CHOIR_BUILD_COMPILER, CHOIR_BUILD_MARCH),
       ""},
      judge_mpi(compiled_mpi(), MpiSession::library_version())};
  if (session.thread_multiple())
    findings.push_back({Health::ok, "MPI threads", "multiple", ""});
  else
    findings.push_back(
        {Health::error, "MPI threads", session.thread_level() + ": reading ahead needs multiple",
         "use an MPI built with MPI_THREAD_MULTIPLE (MVAPICH: MV2_ENABLE_AFFINITY=0)"});
  findings.push_back(examine_hdf5());
  findings.push_back(examine_blas());
  const std::string library = ops::gemm_library(DType::bf16);
  if (library.starts_with("oneDNN"))
    findings.push_back({Health::ok, "oneDNN", library, ""});
  else
    findings.push_back({Health::warning, "oneDNN",
                        fmt::format("bf16 by {}, fp32 by {}: bf16-mixed is slow", library,
                                    ops::gemm_library(DType::f32)),
                        bf16_advice(kHasOneDnn, cpu_features().avx512)});
  for (Finding& finding : examine_gpus()) findings.push_back(std::move(finding));
  return findings;
}

Finding examine_batch_system() {
  BatchFacts facts;
  facts.nersc_host = environment("NERSC_HOST");
  facts.host = environment("PBS_O_HOST") + " " + host_name();
  facts.slurm = !environment("SLURM_JOB_ID").empty() || on_path("sbatch");
  facts.pbs = !environment("PBS_JOBID").empty() || (on_path("qsub") && !facts.slurm);
  return judge_batch_system(facts);
}

std::vector<Finding> examine_processor() {
  const CpuFeatures& cpu = cpu_features();
  const std::string name = cpu_model().name;
  const std::string text = fmt::format("{}{}{}{}", CpuDevice().description(),
                                       name.empty() ? "" : ", ", name, topology());
#ifdef __AVX512F__
  constexpr bool kWide = true;
#else
  constexpr bool kWide = false;
#endif
  if (cpu.avx512 && !kWide)
    return {{Health::warning, "processor",
             fmt::format("{}; built for -march={} without AVX-512", text, CHOIR_BUILD_MARCH),
             "`make clean && make MARCH=native` on this machine"}};
  return {{Health::ok, "processor", text, ""}};
}

std::vector<RankFacts> gather_ranks(Mesh& mesh) {
  const cpu_set_t own = team_cores();
  nlohmann::json mine{{"rank", mesh.rank()},
                      {"local_rank", mesh.node().rank()},
                      {"node", mesh.node_index()},
                      {"host", host_name()},
                      {"threads", omp_get_max_threads()},
                      {"cores", nlohmann::json::array()}};
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &own)) mine["cores"].push_back(core);
  std::vector<RankFacts> ranks;
  for (const std::string& text : gather_texts(mesh.world(), dumped(mine))) {
    const auto json = parsed_json(text);
    ranks.push_back({json.at("rank"), json.at("local_rank"), json.at("node"), json.at("host"),
                     json.at("cores").get<std::vector<int>>(), json.at("threads")});
  }
  return ranks;
}

}  // namespace choir
