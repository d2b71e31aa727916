// choir doctor: programs, libraries, the processor.
#include <dlfcn.h>
#include <fmt/core.h>
#include <hdf5.h>
#include <sched.h>

#include <nlohmann/json.hpp>

#include "choir/app/doctor.hpp"
#include "choir/comm/gather_text.hpp"
#include "choir/comm/mpi_api.hpp"
#include "choir/core/plural.hpp"
#include "choir/device/cpu_device.hpp"
#include "choir/device/cpu_model.hpp"
#include "choir/ops/gemm.hpp"
#include "choir/train/engine/build_info.hpp"
#include "choir_features.hpp"
#ifdef CHOIR_HAVE_HWLOC
#include <hwloc.h>
#endif
#include <omp.h>

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
  // By name: another CBLAS has no such functions.
  const auto parallel = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_parallel"));
  const auto config = reinterpret_cast<char* (*)()>(dlsym(RTLD_DEFAULT, "openblas_get_config"));
  if (!parallel || !config) return judge_blas(std::nullopt, "");
  return judge_blas(parallel(), config());
}

Finding examine_hdf5() {
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  const std::string running = fmt::format("{}.{}.{}", major, minor, release);
  const std::string compiled =
      fmt::format("{}.{}.{}", H5_VERS_MAJOR, H5_VERS_MINOR, H5_VERS_RELEASE);
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

}  // namespace

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
                        "install libdnnl-dev (or `make ONEDNN=DIR`) and build again; its bf16 "
                        "needs AVX-512"});
  for (Finding& finding : examine_gpus()) findings.push_back(std::move(finding));
  return findings;
}

std::vector<Finding> examine_processor() {
  const CpuFeatures& cpu = cpu_features();
  const std::string name = cpu_model().name;
  std::string text = fmt::format("{}{}{}{}", CpuDevice().description(), name.empty() ? "" : ", ",
                                 name, topology());
#ifdef __AVX512F__
  constexpr bool kWide = true;
#else
  constexpr bool kWide = false;
#endif
  if (cpu.avx512 && !kWide)
    return {{Health::warning, "processor",
             fmt::format("{}; built for -march={} without AVX-512", text, CHOIR_BUILD_MARCH),
             "`make clean && make MARCH=native` on this machine"}};
  if (!cpu.amx_bf16) text += "; no AMX: bf16-mixed will not be faster than fp32";
  return {{Health::ok, "processor", text, ""}};
}

std::vector<RankFacts> gather_ranks(Mesh& mesh) {
  cpu_set_t mask;
  CPU_ZERO(&mask);
  sched_getaffinity(0, sizeof mask, &mask);
  nlohmann::json mine{{"rank", mesh.rank()},
                      {"local_rank", mesh.node().rank()},
                      {"node", mesh.node_index()},
                      {"host", host_name()},
                      {"threads", omp_get_max_threads()},
                      {"cores", nlohmann::json::array()}};
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &mask)) mine["cores"].push_back(core);
  std::vector<RankFacts> ranks;
  for (const std::string& text : gather_texts(mesh.world(), mine.dump())) {
    const auto json = nlohmann::json::parse(text);
    ranks.push_back({json.at("rank"), json.at("local_rank"), json.at("node"), json.at("host"),
                     json.at("cores").get<std::vector<int>>(), json.at("threads")});
  }
  return ranks;
}

}  // namespace choir
