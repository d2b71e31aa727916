#include "choir/comm/rehearsal.hpp"

#include <algorithm>
#include <cstring>
#include <fstream>
#include <numeric>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/process.hpp"

namespace choir {
namespace {

void write_bytes(std::ofstream& file, const std::string& bytes) {
  const std::uint64_t length = bytes.size();
  file.write(reinterpret_cast<const char*>(&length), sizeof length);
  file.write(bytes.data(), static_cast<std::streamsize>(length));
}

bool read_bytes(std::ifstream& file, std::string& bytes) {
  std::uint64_t length = 0;
  if (!file.read(reinterpret_cast<char*>(&length), sizeof length)) return false;
  bytes.resize(length);
  return static_cast<bool>(file.read(bytes.data(), static_cast<std::streamsize>(length)));
}

}  // namespace

std::int64_t RehearsedPhase::calls() const {
  return std::accumulate(groups.begin(), groups.end(), std::int64_t{0},
                         [](std::int64_t n, const RehearsedGroup& g) { return n + g.calls; });
}

double RehearsedPhase::bytes() const {
  return std::accumulate(groups.begin(), groups.end(), 0.0,
                         [](double n, const RehearsedGroup& g) { return n + g.bytes; });
}

Rehearsal::Rehearsal(int rank, std::string script) : rank_(rank), path_(std::move(script)) {
  if (rank_ != 0) read_script();
}

void Rehearsal::read_script() {
  std::ifstream file(path_, std::ios::binary);
  if (!file) throw StorageError("cannot read " + path_, "play rank 0 first: it writes this file");
  std::string group, said;
  while (read_bytes(file, group) && read_bytes(file, said)) script_[group].push_back(said);
}

void Rehearsal::write_script() const {
  std::ofstream file(path_, std::ios::binary | std::ios::trunc);
  for (const auto& [group, all] : script_)
    for (const std::string& said : all) {
      write_bytes(file, group);
      write_bytes(file, said);
    }
  if (!file.flush()) throw StorageError("cannot write " + path_, "is the disk full?");
}

Rehearsal::Usage Rehearsal::usage() {
  Usage all;
  all.time = now_seconds();
  std::ifstream file("/proc/self/io");
  std::string key;
  for (std::int64_t value = 0; file >> key >> value;) {
    if (key == "rchar:" || key == "wchar:") all.file_bytes += static_cast<double>(value);
    if (key == "syscr:" || key == "syscw:") all.file_calls += value;
  }
  return all;
}

void Rehearsal::close_phase() {
  const Usage now = usage();
  if (open_) {
    RehearsedPhase& phase = phases_[current_];
    phase.seconds += now.time - began_.time;
    phase.file_calls += now.file_calls - began_.file_calls;
    phase.file_bytes += now.file_bytes - began_.file_bytes;
    phase.resident = resident_bytes();
  }
  open_ = false;
  began_ = now;
}

void Rehearsal::enter(std::string_view name) {
  const std::lock_guard lock(mutex_);
  if (open_ && phases_[current_].name == name) return;
  close_phase();
  const auto found = std::find_if(phases_.begin(), phases_.end(),
                                  [&](const RehearsedPhase& phase) { return phase.name == name; });
  current_ = static_cast<std::size_t>(found - phases_.begin());
  if (found == phases_.end()) phases_.push_back({.name = std::string(name)});
  open_ = true;
}

std::vector<RehearsedPhase> Rehearsal::finish() {
  const std::lock_guard lock(mutex_);
  close_phase();
  if (rank_ == 0) write_script();
  return phases_;
}

void Rehearsal::count(const std::string& group, int ranks, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (!open_) return;
  std::vector<RehearsedGroup>& groups = phases_[current_].groups;
  auto found = std::find_if(groups.begin(), groups.end(),
                            [&](const RehearsedGroup& g) { return g.name == group; });
  if (found == groups.end()) found = groups.insert(found, {.name = group, .ranks = ranks});
  ++found->calls;
  found->bytes += static_cast<double>(bytes);
}

void Rehearsal::say(const std::string& group, const void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (rank_ != 0 || bytes == 0) return;
  script_[group].emplace_back(static_cast<const char*>(data), bytes);
}

void Rehearsal::hear(const std::string& group, void* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (bytes == 0) return;
  std::memset(data, 0, bytes);
  const auto said = script_.find(group);
  if (said == script_.end() || said->second.empty()) return;
  const std::string next = std::move(said->second.front());
  said->second.pop_front();
  if (next.size() != bytes)
    throw CommError(fmt::format("rehearsal: rank {} expects a broadcast of {} bytes in {}, but "
                                "the root sends {}",
                                rank_, bytes, group, next.size()),
                    "every rank of a communicator makes the same calls in the same order");
  std::memcpy(data, next.data(), bytes);
}

}  // namespace choir
