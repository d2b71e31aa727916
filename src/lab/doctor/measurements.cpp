// Measurements of `choir doctor`: speed, clocks, the file system.
#include <fcntl.h>
#include <fmt/core.h>
#include <omp.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>

#include "choir/core/philox.hpp"
#include "kernels/bench/op_bench.hpp"
#include "kernels/gemm/gemm.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/process.hpp"
#include "src/core/quantities.hpp"
#include "src/core/stats.hpp"
#include "src/device/cpu_device.hpp"
#include "src/lab/bench/bench_collectives.hpp"
#include "src/lab/doctor/doctor.hpp"
#include "src/train/loop/diagnosis.hpp"

namespace choir {
namespace {

constexpr std::size_t kReduceBytes = std::size_t{16} << 20;

/// Bytes/s of the fastest network of this node; 0 if the system does not report it.
double link_rate() {
  namespace fs = std::filesystem;
  double bits = 0;
  std::error_code ignored;
  for (const auto& card : fs::directory_iterator("/sys/class/infiniband", ignored))
    for (const auto& port : fs::directory_iterator(card.path() / "ports", ignored)) {
      double gbit = 0;  // "100 Gb/sec (4X EDR)"
      if (std::ifstream(port.path() / "rate") >> gbit) bits = std::max(bits, 1e9 * gbit);
    }
  for (const auto& card : fs::directory_iterator("/sys/class/net", ignored)) {
    double mbit = 0;  // -1: unknown
    if (fs::exists(card.path() / "device", ignored) && std::ifstream(card.path() / "speed") >> mbit)
      bits = std::max(bits, 1e6 * mbit);
  }
  return bits / 8;
}

/// The current frequency of the fastest core in Hz; 0 if the system does not report it.
double clock_rate() {
  double fastest = 0;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);)
    if (line.starts_with("cpu MHz"))
      fastest = std::max(fastest, 1e6 * std::strtod(line.c_str() + line.find(':') + 1, nullptr));
  return fastest;
}

/// The number of cores with arithmetic units of their own that the threads of this rank can use.
int cores_at_work() {
  std::set<std::string> groups;
  const cpu_set_t own = team_cores();
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (!CPU_ISSET(core, &own)) continue;
    std::string siblings = std::to_string(core);
    std::ifstream file(
        fmt::format("/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", core));
    std::getline(file, siblings);
    groups.insert(siblings);
  }
  return std::max(1, std::min(omp_get_max_threads(), static_cast<int>(groups.size())));
}

Finding examine_all_reduce(Mesh& mesh, double copy, double busy) {
  Communicator& world = mesh.world();
  if (world.size() == 1) return {Health::ok, "all-reduce", "single rank, no communication", ""};
  const auto buffer = world.allocate(kReduceBytes);
  const std::size_t count = kReduceBytes / sizeof(float);
  auto* values = static_cast<float*>(buffer->data());
  std::vector<double> times;
  for (int round = 0; round < 4; ++round) {
    const PhiloxKey key = philox_key(static_cast<std::uint64_t>(world.rank()), "doctor");
    for (std::size_t i = 0; i < count; i += 4)
      for (std::size_t k = 0; const std::uint32_t word : philox_at(key, i))
        values[i + k++] = static_cast<float>(uniform01(word));
    world.barrier();
    const double start = now_seconds();
    world.all_reduce(values, count, DType::f32, ReduceOp::sum);
    double seconds = now_seconds() - start;
    world.all_reduce(&seconds, 1, DType::f64, ReduceOp::max);
    if (round > 0) times.push_back(seconds);
  }
  const double ranks = world.size();
  const double rate =
      2 * (ranks - 1) / ranks * static_cast<double>(kReduceBytes) / median_of(times);
  int nodes = mesh.node().rank() == 0 ? 1 : 0;
  world.all_reduce(&nodes, 1, DType::i32, ReduceOp::sum);
  Finding finding = judge_all_reduce(rate, world.size(), nodes, copy, link_rate(), busy);
  if (mesh.node().size() == 1) return finding;
  try {
    const CollectiveBench bench = bench_collectives(
        mesh, {.min_bytes = kReduceBytes, .max_bytes = kReduceBytes, .repeats = 3});
    for (const CollectiveRow& row : bench.rows)
      if (row.name == "all_reduce" && row.transport == "node")
        finding.text += fmt::format("; {:.2f} GB/s in node-shared windows, {} ranks per node",
                                    row.bus_gb_per_s, bench.ranks);
  } catch (const CommError& error) {  // all ranks know that there is no room
    if (error.agreed_ranks() != mesh.node().size()) throw;
    return {Health::warning, finding.name, finding.text + "; " + error.what(), error.hint()};
  }
  return finding;
}

std::string file_system_name(long type) {
  static const std::map<long, const char*> kNames{
      {0xEF53, "ext4"},     {0x58465342, "xfs"},   {0x01021994, "tmpfs"},   {0x858458f6, "ramfs"},
      {0x6969, "nfs"},      {0x9123683E, "btrfs"}, {0x794c7630, "overlay"}, {0x0BD00BD0, "lustre"},
      {0x47504653, "gpfs"}, {0x65735546, "fuse"},  {0x2fc12fc1, "zfs"},     {0x01021997, "9p"},
      {0xff534d42, "cifs"}, {0x19830326, "beegfs"}};
  const auto at = kNames.find(type);
  return at == kNames.end() ? fmt::format("type 0x{:x}", type) : at->second;
}

/// The median seconds to make 4 KB durable. Throws StorageError.
double fsync_latency(const std::string& folder) {
  std::string path = folder + "/.choir_doctor_XXXXXX";
  const int file = mkostemp(path.data(), O_CLOEXEC);
  if (file < 0)
    throw StorageError(fmt::format("cannot write in '{}': {}", folder, std::strerror(errno)),
                       "choose a writable run.dir");
  const std::array<char, 4096> page{};
  std::vector<double> times;
  bool good = true;
  for (int i = 0; i < 7 && good; ++i) {
    const double start = now_seconds();
    good = pwrite(file, page.data(), page.size(), i * 4096L) == static_cast<ssize_t>(page.size()) &&
           fsync(file) == 0;
    times.push_back(now_seconds() - start);
  }
  const int reason = errno;
  close(file);
  unlink(path.c_str());
  if (!good)
    throw StorageError(fmt::format("cannot write in '{}': {}", folder, std::strerror(reason)),
                       "is the disk full?");
  return median_of(times);
}

Finding examine_folder(const std::string& folder) {
  namespace fs = std::filesystem;
  // If the folder does not exist yet, its nearest existing parent is examined.
  fs::path existing = fs::absolute(folder);
  while (!fs::exists(existing)) existing = existing.parent_path();
  try {
    struct statfs kind;
    struct statvfs room;
    if (statfs(existing.c_str(), &kind) != 0 || statvfs(existing.c_str(), &room) != 0)
      throw StorageError(
          fmt::format("cannot read '{}': {}", existing.string(), std::strerror(errno)));
    const double latency = fsync_latency(existing.string());
    return judge_file_system(
        folder, file_system_name(static_cast<long>(kind.f_type)),
        static_cast<double>(room.f_bavail) * static_cast<double>(room.f_frsize), latency);
  } catch (const StorageError& error) {
    return {Health::error, "file system", error.what(),
            error.hint().empty() ? "choose another run.dir" : error.hint()};
  }
}

bool is_segment(const std::string& path) {
  return path.find("/vader_segment.") != std::string::npos ||
         path.find("/sm_segment.") != std::string::npos;
}

/// The segments mapped by processes that this user may inspect.
std::vector<std::string> mapped_segments() {
  namespace fs = std::filesystem;
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& process : fs::directory_iterator("/proc", ignored)) {
    const std::string name = process.path().filename().string();
    if (name.find_first_not_of("0123456789") != std::string::npos) continue;
    std::ifstream maps(process.path() / "maps");
    for (std::string line; std::getline(maps, line);)
      if (const auto at = line.find('/'); at != std::string::npos && is_segment(line))
        found.push_back(line.substr(at, line.find(' ', at) - at));
  }
  return found;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::vector<Finding> examine_speed(Mesh& mesh) {
  const auto device = make_device(DeviceKind::cpu);
  const Stream stream(*device);
  Communicator& world = mesh.world();
  CoreWatch watch(computing_threads());
  SpeedFacts facts;
  int library = 0;
  for (const auto& [type, rate] :
       {std::pair{DType::f64, &facts.f64}, {DType::f32, &facts.f32}, {DType::bf16, &facts.bf16}}) {
    world.barrier();
    *rate = ops::measure_gemm(stream, type);
    facts.clock = std::max(facts.clock, clock_rate());
    facts.libraries[library++] = ops::gemm_library(type);
  }
  world.barrier();
  facts.copy = ops::measure_copy(stream);
  facts.busy = watch.look().share();
  facts.cores = cores_at_work();
  facts.avx2 = cpu_features().avx2;
  for (double* sum : {&facts.f64, &facts.f32, &facts.bf16, &facts.copy, &facts.clock})
    world.all_reduce(sum, 1, DType::f64, ReduceOp::sum);
  facts.clock /= world.size();
  world.all_reduce(&facts.cores, 1, DType::i32, ReduceOp::sum);
  world.all_reduce(&facts.busy, 1, DType::f64, ReduceOp::max);
  std::vector<Finding> findings = judge_speed(facts);
  findings.push_back(examine_all_reduce(mesh, facts.copy, facts.busy));
  return findings;
}

Finding examine_clocks(Communicator& world) {
  std::vector<double> ahead(static_cast<std::size_t>(world.size()), 0.0);
  for (int rank = 1; rank < world.size(); ++rank) {
    double best = 1e30;
    for (int round = 0; round < 8; ++round) {
      double theirs = 0;
      if (world.rank() == 0) {
        const double start = wall_seconds();
        world.send(&start, sizeof start, rank, 0);
        world.receive(&theirs, sizeof theirs, rank, 0);
        const double end = wall_seconds();
        // The fastest exchange bounds the error by half of its time (Cristian 1989).
        if (end - start >= best) continue;
        best = end - start;
        ahead[static_cast<std::size_t>(rank)] = theirs - (start + end) / 2;
      } else if (world.rank() == rank) {
        world.receive(&theirs, sizeof theirs, 0, 0);
        theirs = wall_seconds();
        world.send(&theirs, sizeof theirs, 0, 0);
      }
    }
  }
  return judge_clocks(ahead);
}

Finding examine_shared_memory() {
  namespace fs = std::filesystem;
  // The files are listed first, then their mappings: a file created in between is in neither list.
  std::vector<std::string> segments;
  std::map<std::string, double> bytes_of;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator("/dev/shm", ignored)) {
    struct stat status {};
    if (is_segment(entry.path().string()) && ::stat(entry.path().c_str(), &status) == 0 &&
        status.st_uid == geteuid()) {
      segments.push_back(entry.path().string());
      bytes_of[segments.back()] = static_cast<double>(status.st_size);
    }
  }
  std::sort(segments.begin(), segments.end());
  const std::vector<std::string> mapped = mapped_segments();
  double bytes = 0;
  for (const std::string& path : segments)
    if (std::find(mapped.begin(), mapped.end(), path) == mapped.end()) bytes += bytes_of[path];
  return judge_shared_memory(segments, mapped, bytes);
}

Finding examine_file_system(Communicator& world, const std::string& folder) {
  return world.rank() == 0 ? examine_folder(folder) : Finding{};
}

}  // namespace choir
