// Judgements of `choir doctor`: findings from facts and from measured speeds, and their text. Pure.

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <map>
#include <set>
#include <string_view>

#include "src/core/json_value.hpp"
#include "src/core/quantities.hpp"
#include "src/core/text.hpp"
#include "src/lab/doctor/doctor.hpp"

namespace choir {
namespace {

const char* word(Health health) {
  constexpr const char* kWords[]{"OK", "INFO", "WARNING", "ERROR"};
  return kWords[static_cast<int>(health)];
}

std::map<int, std::vector<const RankFacts*>> by_node(const std::vector<RankFacts>& ranks) {
  std::map<int, std::vector<const RankFacts*>> nodes;
  for (const RankFacts& r : ranks) nodes[r.node].push_back(&r);
  return nodes;
}

/// Ranks of a host that share cores, directly or through other ranks; with the cores and threads of
/// all of them.
struct Sharing {
  std::set<int> cores;
  std::vector<const RankFacts*> ranks;
  int threads = 0;
};

std::vector<Sharing> sharing_groups(const std::vector<const RankFacts*>& ranks) {
  std::vector<Sharing> groups;
  for (const RankFacts* rank : ranks) {
    Sharing mine{{rank->cores.begin(), rank->cores.end()}, {rank}, rank->threads};
    for (auto group = groups.begin(); group != groups.end();) {
      const bool common = std::any_of(rank->cores.begin(), rank->cores.end(),
                                      [&](int core) { return group->cores.contains(core); });
      if (!common) {
        ++group;
        continue;
      }
      mine.cores.merge(group->cores);
      mine.ranks.insert(mine.ranks.begin(), group->ranks.begin(), group->ranks.end());
      mine.threads += group->threads;
      group = groups.erase(group);
    }
    groups.push_back(std::move(mine));
  }
  return groups;
}

std::string ranks_text(const Sharing& group) {
  std::vector<int> numbers;
  for (const RankFacts* rank : group.ranks) numbers.push_back(rank->rank);
  std::sort(numbers.begin(), numbers.end());
  return (numbers.size() == 1 ? "rank " : "ranks ") + core_list(numbers);
}

Finding judge_sharing(const Sharing& group) {
  const std::string who = fmt::format("{} on {}", ranks_text(group), group.ranks.front()->host);
  const std::string cores = core_list({group.cores.begin(), group.cores.end()});
  const int available = static_cast<int>(group.cores.size());
  if (group.threads > available)
    return {
        Health::warning, "binding",
        fmt::format("{}: {} on {} ({})", who, counted(group.threads, "thread"),
                    counted(available, "core"), cores),
        group.ranks.size() == 1
            ? fmt::format("OMP_NUM_THREADS={}, or bind the rank to more cores (mpiexec --map-by "
                          "slot:PE=N)",
                          available)
            : fmt::format("fewer ranks{}; ranks share cores: bind each to its own (mpiexec "
                          "--bind-to core, srun --cpu-bind=cores)",
                          group.threads > std::ssize(group.ranks)
                              ? fmt::format(", or OMP_NUM_THREADS={}",
                                            std::max<std::ptrdiff_t>(
                                                1, available / std::ssize(group.ranks)))
                              : "")};
  // jobs/launch leaves ranks on a laptop unbound, because two of their threads would share a core.
  const char* const site = std::getenv("CHOIR_SITE_READY");
  const bool on_laptop = site != nullptr && std::string_view(site) == "local";
  if (group.ranks.size() > 1)
    return {on_laptop ? Health::info : Health::warning, "binding",
            fmt::format("{}: {} ({}) shared by {}: enough cores, not pinned", who,
                        counted(available, "core"), cores, counted(group.threads, "thread")),
            on_laptop ? "jobs/launch does not bind ranks on one machine, because two threads of a "
                        "rank would share a core; ranks of one thread can be bound with mpiexec "
                        "--bind-to core"
                      : "bind each rank to its own cores (mpiexec --bind-to core --map-by "
                        "slot:PE=N, srun --cpu-bind=cores): the OS may run both on one core"};
  return {Health::ok, "binding",
          fmt::format("{}: {} on {} ({})", who, counted(group.threads, "thread"),
                      counted(available, "core"), cores),
          ""};
}

}  // namespace

std::string core_list(const std::vector<int>& cores) {
  std::string text;
  for (std::size_t i = 0; i < cores.size();) {
    std::size_t last = i;
    while (last + 1 < cores.size() && cores[last + 1] == cores[last] + 1) ++last;
    if (!text.empty()) text += ",";
    text += last == i ? std::to_string(cores[i]) : fmt::format("{}-{}", cores[i], cores[last]);
    i = last + 1;
  }
  return text;
}

std::vector<Finding> judge_binding(const std::vector<RankFacts>& ranks) {
  std::vector<Finding> findings;
  for (const auto& [node, here] : by_node(ranks))
    for (const Sharing& group : sharing_groups(here)) {
      findings.push_back(judge_sharing(group));
      for (const RankFacts* rank : group.ranks)
        if (group.ranks.size() > 1 && rank->threads > static_cast<int>(rank->cores.size()))
          findings.push_back(
              {Health::warning, "binding",
               fmt::format("rank {} has {} on {} ({})", rank->rank,
                           counted(rank->threads, "thread"), counted(rank->cores.size(), "core"),
                           core_list(rank->cores)),
               fmt::format("OMP_NUM_THREADS={}", rank->cores.size())});
    }
  return findings;
}

Finding judge_ranks(const std::vector<RankFacts>& ranks) {
  const auto nodes = by_node(ranks);
  std::size_t fewest = ranks.size(), most = 0;
  std::vector<std::string> hosts;
  for (const auto& [node, here] : nodes) {
    fewest = std::min(fewest, here.size()), most = std::max(most, here.size());
    hosts.push_back(fmt::format("{} ({})", here.front()->host, here.size()));
  }
  const std::string text = fmt::format("{} on {}: {}", counted(ranks.size(), "rank"),
                                       counted(nodes.size(), "host"), join(hosts, ", "));
  if (fewest == most) return {Health::ok, "ranks", text, ""};
  return {Health::warning, "ranks", text + ": not the same number on each",
          "the fullest host sets the pace: start with the same number of ranks per host"};
}

Finding judge_mpi(const std::string& compiled, const std::string& running) {
  const std::string text = fmt::format("{}; compiled with mpi.h of {}", running, compiled);
  const auto blank = compiled.rfind(' ');
  const std::string family = compiled.substr(0, blank), version = compiled.substr(blank + 1);
  const std::string series = version.substr(0, version.rfind('.'));
  if (running.find(family) != std::string::npos && running.find(series) != std::string::npos)
    return {Health::ok, "MPI", text, ""};
  return {Health::error, "MPI", text + ": not the same MPI",
          "load the MPI it was built with (ldd build/choir shows which library is found), or `make "
          "clean && "
          "make`"};
}

Finding judge_blas(std::optional<int> flavour, const std::string& config, bool avx2) {
  if (!flavour) return {Health::ok, "BLAS", "not OpenBLAS", ""};
  constexpr const char* kNames[]{"serial", "pthread", "OpenMP"};
  const std::string text =
      fmt::format("{}, {} flavour", config, kNames[std::clamp(*flavour, 0, 2)]);
  // OpenBLAS assumes one of these for a processor that it does not know.
  for (const char* old : {"Prescott", "Core2", "Nehalem", "Sandybridge", "Generic"})
    if (avx2 && *flavour != 1 && config.find(old) != std::string::npos)
      return {
          Health::warning, "BLAS",
          fmt::format("{}: uses kernels for {}, which has no AVX2; fp64 is several times slower, "
                      "which concerns train.precision=fp64 and `choir verify` alone",
                      text, old),
          "OPENBLAS_CORETYPE=SkylakeX (AVX-512), Zen or Haswell (AVX2) in the environment, or a "
          "newer OpenBLAS"};
  if (*flavour != 1) return {Health::ok, "BLAS", text, ""};
  return {Health::warning, "BLAS",
          text + ": its threads compete with those of OpenMP (3 to 17 times slower)",
          "install libopenblas-openmp-dev (or -serial), or `make BLAS_DIR=...`; until then "
          "OPENBLAS_NUM_THREADS=1"};
}

std::vector<Finding> judge_gpus(const cuda::Availability& found, int device_files,
                                const std::vector<GpuLibrary>& libraries) {
  std::string versions;
  if (!found.driver.empty()) versions += fmt::format("; driver for CUDA {}", found.driver);
  if (!found.toolkit.empty()) versions += fmt::format("; built with CUDA {}", found.toolkit);
  std::vector<Finding> findings;
  if (found.cards.empty()) {
    const std::string text = fmt::format("none: {}{}", found.reason, versions);
    if (device_files > 0)
      findings.push_back({Health::warning, "GPUs",
                          fmt::format("{} NVIDIA devices cannot be used: {}{}", device_files,
                                      found.reason, versions),
                          found.hint});
    else
      findings.push_back({Health::ok, "GPUs", text, ""});
  } else {
    findings.push_back({Health::ok, "GPUs", fmt::format("{}{}", found.cards.size(), versions), ""});
  }
  for (const cuda::Card& card : found.cards)
    findings.push_back(
        {Health::ok, fmt::format("GPU {}", card.ordinal),
         fmt::format("{}, sm_{}{}, {} SMs, {}, {} at {}, NUMA node {}{}", card.name, card.major,
                     card.minor, card.multiprocessors,
                     format_bytes(static_cast<double>(card.memory)), card.uuid, card.pci,
                     card.numa_node < 0 ? "unknown" : std::to_string(card.numa_node),
                     card.peak_bf16_flops > 0
                         ? fmt::format(", peak {:.0f} TFLOP/s bf16", card.peak_bf16_flops / 1e12)
                         : ", peak unknown"),
         ""});
  for (const GpuLibrary& library : libraries) {
    if (!library.version.empty())
      findings.push_back({Health::ok, library.name, library.version, ""});
    else if (found.cards.empty())
      findings.push_back({Health::ok, library.name, "not found (not needed without a GPU)", ""});
    else
      findings.push_back({Health::warning, library.name,
                          fmt::format("{}: {}", library.reason, library.without),
                          "put its folder into LD_LIBRARY_PATH (module load ...)"});
  }
  return findings;
}

Finding judge_file_system(const std::string& folder, const std::string& type, double free_bytes,
                          double fsync_seconds) {
  const std::string text = fmt::format("{}: {}, {} free, fsync of a small file {:.2f} ms", folder,
                                       type, format_bytes(free_bytes), 1e3 * fsync_seconds);
  if (free_bytes < 1e9)
    return {Health::warning, "file system", text, "checkpoints need space: choose another run.dir"};
  if (type == "tmpfs" || type == "ramfs")
    return {Health::warning, "file system", text + "; in memory, lost at a reboot",
            "choose another run.dir"};
  if (type == "nfs")
    return {Health::warning, "file system", text,
            "set HDF5_USE_FILE_LOCKING=FALSE if locks fail; a parallel file system is faster"};
  if (fsync_seconds > 0.5)
    return {Health::warning, "file system", text + ": slow",
            "save less often (checkpoint.interval)"};
  return {Health::ok, "file system", text, ""};
}

namespace {

/// A short command that removes files of dead jobs and none of living ones: a pattern for each job,
/// or for many jobs the longest beginning that they share, if no living one has it. Of many jobs
/// beside living ones only the first are named, and the next call names the others.
std::string removal_of_dead(const std::set<std::string>& dead, const std::set<std::string>& alive) {
  constexpr std::size_t kMost = 3;
  // In an ordered set the first and the last name share the least.
  const std::string &first = *dead.begin(), &last = *dead.rbegin();
  const auto differ = std::ranges::mismatch(first, last).in1;
  const std::string shared(first.begin(), differ);
  const bool safe =
      shared.find("_segment.") != std::string::npos &&
      std::ranges::none_of(alive, [&](const std::string& job) { return job.starts_with(shared); });
  if (dead.size() > kMost && safe) return "before another job starts: rm " + shared + "*";
  std::vector<std::string> patterns;
  for (const std::string& job : dead)
    if (patterns.size() < kMost) patterns.push_back(job + ".*");
  return "rm " + join(patterns, " ") +
         (dead.size() > kMost ? fmt::format("  # and choir doctor again for the other {}",
                                            counted(dead.size() - kMost, "job"))
                              : "");
}

}  // namespace

Finding judge_shared_memory(const std::vector<std::string>& segments,
                            const std::vector<std::string>& mapped, double bytes_of_dead) {
  // The files of a job differ in the last part of their names, the rank. While one of its ranks
  // lives, nothing is known about the others.
  const auto job_of = [](const std::string& path) { return path.substr(0, path.rfind('.')); };
  std::set<std::string> alive, dead;
  for (const std::string& path : mapped) alive.insert(job_of(path));
  std::size_t left = 0;
  for (const std::string& path : segments) {
    if (alive.contains(job_of(path))) continue;
    dead.insert(job_of(path));
    ++left;
  }
  if (left == 0)
    return {Health::ok, "shared memory", fmt::format("{} of live ranks", segments.size()), ""};
  return {Health::warning, "shared memory",
          fmt::format("{} of Open MPI with {} left over from killed ranks of this user; no living "
                      "process has them open",
                      counted(left, "segment"), format_bytes(bytes_of_dead)),
          removal_of_dead(dead, alive)};
}

Finding judge_clocks(const std::vector<double>& ahead) {
  double worst = 0;
  std::size_t rank = 0;
  for (std::size_t r = 0; r < ahead.size(); ++r)
    if (std::abs(ahead[r]) > std::abs(worst)) worst = ahead[r], rank = r;
  const std::string text =
      fmt::format("within {:.6f} s of rank 0 (rank {}: {:.6f} s)", std::abs(worst), rank, worst);
  if (ahead.size() == 1) return {Health::ok, "clocks", "single rank", ""};
  if (std::abs(worst) < 1) return {Health::ok, "clocks", text, ""};
  return {Health::warning, "clocks", text,
          "times in logs and traces will differ: start NTP on that host"};
}

Finding judge_training(const std::vector<double>& losses, const std::vector<std::uint64_t>& digests,
                       double seconds) {
  const std::string text = fmt::format("tiny model, {} steps in {:.2f} s: loss {:.3f} -> {:.3f}",
                                       losses.size(), seconds, losses.front(), losses.back());
  std::vector<int> different;
  for (std::size_t r = 0; r < digests.size(); ++r)
    if (digests[r] != digests[0]) different.push_back(static_cast<int>(r));
  if (!different.empty())
    return {
        Health::error, "training",
        fmt::format("{}; the weights of ranks {} differ from rank 0", text, core_list(different)),
        "do not train here: memory, network or MPI corrupts data. Test these hosts one by one"};
  // On a good machine the loss falls to a sixth. NaN fails the comparison.
  if (!(losses.back() < 0.7 * losses.front()))
    return {Health::error, "training", text + ": the loss does not fall",
            "run `make test` to find the wrong computation"};
  return {Health::ok, "training", text + (digests.size() > 1 ? ", all ranks agree" : ""), ""};
}

Finding judge_batch_system(const BatchFacts& facts) {
  const auto fits = [](const std::string& system, const std::string& file,
                       const std::string& submit) {
    return Finding{Health::ok, "batch system",
                   fmt::format("{}: use jobs/{}; for a chain of jobs: jobs/chain.sh -n 8 jobs/{} "
                               "DECK; for one job: {} jobs/{}",
                               system, file, file, submit, file),
                   ""};
  };
  if (facts.nersc_host == "perlmutter")
    return fits("SLURM on Perlmutter", "perlmutter.slurm", "sbatch");
  if (facts.pbs && facts.host.find("polaris") != std::string::npos)
    return fits("PBS on Polaris", "polaris.pbs", "qsub");
  if (facts.slurm) return fits("SLURM", "generic.slurm", "sbatch");
  if (facts.pbs) return fits("PBS", "generic.pbs", "qsub");
  return {Health::ok, "batch system",
          "none: use jobs/local.sh DECK, or jobs/launch -n RANKS PROGRAM", ""};
}

std::string to_text(const std::vector<Finding>& findings) {
  std::string text;
  int errors = 0, warnings = 0;
  for (const Finding& f : findings) {
    errors += f.health == Health::error;
    warnings += f.health == Health::warning;
    text += fmt::format("\n{:<8} {:<13}  {}", word(f.health), f.name, f.text);
    if (!f.remedy.empty()) text += fmt::format("\n{:<23} -> {}", "", f.remedy);
  }
  return fmt::format("{} error{}, {} warning{}{}", errors, plural(errors), warnings,
                     plural(warnings), text);
}

std::string to_json(const std::vector<Finding>& findings, const std::vector<RankFacts>& ranks) {
  nlohmann::ordered_json json;
  int errors = 0, warnings = 0;
  for (const Finding& f : findings) {
    errors += f.health == Health::error;
    warnings += f.health == Health::warning;
    json["findings"].push_back(
        {{"health", word(f.health)}, {"name", f.name}, {"text", f.text}, {"remedy", f.remedy}});
  }
  for (const RankFacts& r : ranks)
    json["ranks"].push_back({{"rank", r.rank},
                             {"local_rank", r.local_rank},
                             {"node", r.node},
                             {"host", r.host},
                             {"cores", r.cores},
                             {"threads", r.threads}});
  json["errors"] = errors;
  json["warnings"] = warnings;
  return dumped(json, 1);
}

bool has_error(const std::vector<Finding>& findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& f) { return f.health == Health::error; });
}

namespace {

constexpr double kWell = 0.5;         // of the least that cores should reach
constexpr double kWellReduce = 0.25;  // of the rate of memory or network
constexpr double kOthersCompute =
    0.1;  // share of the time waiting for cores that excuses everything else
constexpr double kFasterByThis = 1.1;  // bf16 over f32, to be worth its rounding
constexpr double kMuchFaster = 1.5;    // bf16 over f32, to be recommended
constexpr int kCoresThatCopy = 8;      // more do not help when memory is the limit

std::string others(double busy) {
  return fmt::format("; other processes used these cores {:.0f} % of the time: measure again",
                     100 * busy);
}

/// ", 74 %"; "" if the ratio is unknown.
std::string ratio_text(double ratio) {
  return ratio > 0 ? fmt::format(", {:.0f} %", 100 * ratio) : "";
}

Finding judge_products(const SpeedFacts& facts) {
  const double f32 = (facts.avx2 ? 32 : 8) * facts.cores * facts.clock, f64 = f32 / 2;
  const double of_f64 = f64 > 0 ? facts.f64 / f64 : 0, of_f32 = f32 > 0 ? facts.f32 / f32 : 0;
  std::string text = fmt::format(
      "f64 {:.3f} TFLOP/s ({}{}), f32 {:.3f} TFLOP/s ({}{}), bf16 {:.3f} TFLOP/s ({}, {:.2f} x "
      "f32), for 1024^3, all ranks together",
      facts.f64 / 1e12, facts.libraries[0], ratio_text(of_f64), facts.f32 / 1e12,
      facts.libraries[1], ratio_text(of_f32), facts.bf16 / 1e12, facts.libraries[2],
      facts.bf16 / facts.f32);
  if (f32 > 0)
    text += fmt::format("; 100 % means {} FLOP in f64 and {} in f32 per cycle of {} at {:.1f} GHz",
                        facts.avx2 ? 16 : 4, facts.avx2 ? 32 : 8, counted(facts.cores, "core"),
                        facts.clock / 1e9);
  const bool slow_f64 = f64 > 0 && of_f64<kWell, slow_f32 = f32> 0 && of_f32 < kWell;
  if ((slow_f64 || slow_f32) && facts.busy > kOthersCompute)
    return {Health::info, "products", text + others(facts.busy), ""};
  if (slow_f32)
    return {Health::warning, "products", text + "; f32 is slow",
            "check: oneDNN for this processor (`make` prints what it found); governor or power "
            "limit of the clock; threads pinned to their own cores"};
  if (slow_f64)
    return {Health::warning, "products", text + "; f64 is slow, and so are fp64 runs and verify",
            "use BLAS kernels for this processor: OPENBLAS_CORETYPE=SkylakeX (AVX-512) or Haswell "
            "(AVX2)"};
  if (facts.bf16 < kFasterByThis * facts.f32)
    return {Health::info, "products", text + "; train in fp32 here: bf16-mixed will not be faster",
            ""};
  if (facts.bf16 >= kMuchFaster * facts.f32)
    return {Health::ok, "products", text,
            fmt::format("train with train.precision=bf16-mixed here: bf16 is multiplied about "
                        "{:.0f} times faster than fp32, the default",
                        facts.bf16 / facts.f32)};
  return {Health::ok, "products", text, ""};
}

Finding judge_memory(const SpeedFacts& facts) {
  const double should = 2 * std::min(facts.cores, kCoresThatCopy) * facts.clock;
  const double ratio = should > 0 ? facts.copy / should : 0;
  // Processors with more channels copy more than two bytes per cycle, which is no ceiling.
  std::string text = fmt::format("{:.1f} GB/s copy (read + written{}), all ranks together",
                                 facts.copy / 1e9, ratio < 1 ? ratio_text(ratio) : "");
  if (ratio > 0 && ratio < 1)
    text += fmt::format("; 100 % means {:.1f} GB/s, two bytes per cycle of {}", should / 1e9,
                        counted(std::min(facts.cores, kCoresThatCopy), "core"));
  if (should == 0 || ratio >= kWell) return {Health::ok, "memory", text, ""};
  if (facts.busy > kOthersCompute) return {Health::info, "memory", text + others(facts.busy), ""};
  return {Health::info, "memory",
          text + fmt::format(
                     "; {:.1f} GB/s is usual: fewer memory channels or modules, or other processes",
                     should / 1e9),
          ""};
}

}  // namespace

std::vector<Finding> judge_speed(const SpeedFacts& facts) {
  return {judge_products(facts), judge_memory(facts)};
}

Finding judge_all_reduce(double bus, int ranks, int nodes, double copy, double link, double busy) {
  const double should = nodes > 1 ? link : copy / (3.0 * ranks);
  const double ratio = should > 0 ? bus / should : 0;
  const std::string text =
      fmt::format("{:.2f} GB/s bus bandwidth{}, 16 MiB over MPI, all {} ranks", bus / 1e9,
                  ratio > 0 ? fmt::format(" ({:.0f} % of {})", 100 * ratio,
                                          nodes > 1 ? "the network" : "the memory limit")
                            : "",
                  ranks);
  if (should == 0 || ratio >= kWellReduce) return {Health::ok, "all-reduce", text, ""};
  if (busy > kOthersCompute) return {Health::info, "all-reduce", text + others(busy), ""};
  if (nodes == 1)
    return {Health::warning, "all-reduce", text,
            "MPI should use shared memory here: unset OMPI_MCA_btl=tcp, check the space in "
            "/dev/shm; training uses node-shared windows (parallel.transport)"};
  return {Health::warning, "all-reduce", text,
          "MPI may not use the fast network: check UCX or libfabric in this MPI (`ompi_info`) and "
          "the network named in jobs/sites; `choir bench collectives` shows each size"};
}

}  // namespace choir
