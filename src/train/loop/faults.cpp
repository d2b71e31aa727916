#include "src/train/loop/faults.hpp"

#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>
#include <utility>

#include "choir/core/error.hpp"
#include "src/core/output.hpp"
#include "src/store/manifest.hpp"

namespace choir {
namespace {

constexpr unsigned kForever = 1u << 20;

/// Prints immediately and in one piece: the process may not live to flush anything.
void say(int rank, const std::string& what) {
  print_safely(stderr, "choir: fault: rank {} {}\n", rank, what);
  std::fflush(stderr);
}

/// Damages a file invisibly: this removes half of the bytes, the next function inverts one in the
/// middle.
void truncate_file(const std::string& path) {
  std::filesystem::resize_file(path, std::filesystem::file_size(path) / 2);
}

void corrupt_file(const std::string& path) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.exceptions(std::ios::failbit | std::ios::badbit);
  const auto middle = static_cast<std::streamoff>(std::filesystem::file_size(path) / 2);
  const int old = file.seekg(middle).get();
  file.seekp(middle).put(static_cast<char>(old ^ 0xff));
}

const Parameter* parameter_named(const ModelInstance& instance, const std::string& name) {
  for (const Parameter& p : instance.storage().parameters().parameters())
    if (p.resident() && (name.empty() || p.name == name)) return &p;
  return nullptr;
}

}  // namespace

void Faults::require_ranks(int ranks) const {
  const FaultSection& f = section_;
  const std::array<std::pair<const char*, int>, 8> all{{{"kill", f.kill_rank},
                                                        {"hang", f.hang_rank},
                                                        {"pause", f.pause_rank},
                                                        {"throw", f.throw_rank},
                                                        {"slow", f.slow_rank},
                                                        {"nan", f.nan_rank},
                                                        {"flip", f.flip_rank},
                                                        {"write_fail", f.write_fail_rank}}};
  for (const auto& [name, rank] : all)
    if (rank >= ranks)
      throw DeckError(fmt::format("fault.{}_rank = {}: there are {} ranks", name, rank, ranks),
                      fmt::format("name one of 0 to {}", ranks - 1));
}

void Faults::require_parameters(ModelInstance& instance) const {
  const auto refuse = [&](const char* key, const std::string& name, const char* why) {
    throw DeckError(fmt::format("{} = \"{}\": rank {} {}", key, name, rank_, why),
                    "`choir inspect` of a checkpoint lists the parameters");
  };
  if (section_.nan_rank == rank_) {
    const Parameter* p = parameter_named(instance, section_.nan_parameter);
    if (p == nullptr || !p->trainable)
      refuse("fault.nan_parameter", section_.nan_parameter, "trains no parameter of that name");
  }
  if (section_.flip_rank == rank_) {
    const Parameter* p = parameter_named(instance, section_.flip_parameter);
    if (p == nullptr || instance.storage().compared(*p).first.count() == 0)
      refuse("fault.flip_parameter", section_.flip_parameter, "has no part of it");
  }
}

void Faults::damage_data() const {
  const auto damage = [&](const char* key, const std::string& path, void (*how)(const std::string&),
                          const char* does) {
    if (path.empty()) return;
    const std::string intact = path + ".intact";
    try {
      std::filesystem::copy_file(path, intact);  // fails if an earlier .intact file exists
      say(rank_, fmt::format("{} {}; the original is in {}", does, path, intact));
      how(path);
    } catch (const std::exception& error) {
      throw DeckError(fmt::format("fault.{} = \"{}\": {}", key, path, plain_cause(error)),
                      "name a writable file, and move an earlier .intact file back");
    }
  };
  damage("truncate_data", section_.truncate_data, truncate_file, "truncates");
  damage("corrupt_data", section_.corrupt_data, corrupt_file, "inverts a byte of");
}

void Faults::at(std::int64_t step, std::string_view place) {
  const FaultSection& f = section_;
  if (!f.enable || f.phase != place) return;
  const std::string where = place == "start" ? fmt::format("before step {}", step)
                                             : fmt::format("in {} of step {}", place, step);
  if (f.kill_in_save.empty() && f.kill_rank == rank_ && f.kill_step == step) {
    say(rank_, "is killed " + where);
    raise(SIGKILL);
  }
  if (f.pause_rank == rank_ && f.pause_step == step) {
    say(rank_, "is stopped " + where);
    raise(SIGSTOP);
  }
  if (f.hang_rank == rank_ && f.hang_step == step) {
    say(rank_, "hangs " + where);
    sleep(kForever);
  }
  if (f.throw_rank == rank_ && f.throw_step == step) {
    say(rank_, "throws " + where);
    throw CommError(fmt::format("rank {} throws {}, as fault.throw_step asks", rank_, where));
  }
  if (f.slow_rank == rank_ && f.slow_step >= 0 && step >= f.slow_step && slowed_ != step) {
    if (slowed_ < 0)
      say(rank_, fmt::format("is slow by {} ms a step from now on, {}", f.slow_ms, where));
    slowed_ = step;
    std::this_thread::sleep_for(std::chrono::duration<double, std::milli>(f.slow_ms));
  }
}

ByTerm Faults::targets(std::int64_t step, const ByTerm& targets) const {
  if (section_.nan_step != step || spoils_gradients()) return targets;
  if (rank_ == 0) say(rank_, fmt::format("and the others take NaN for the loss of step {}", step));
  return {targets.size(), std::numeric_limits<double>::quiet_NaN()};
}

void Faults::spoil_gradients(std::int64_t step, const Stream& stream, const Bucket& bucket) const {
  if (section_.nan_rank != rank_ || section_.nan_step != step) return;
  // All bits set are a NaN in every floating-point type.
  static constexpr std::uint64_t kNan = ~std::uint64_t{0};
  for (const Parameter* p : bucket.parameters) {
    if (p->name != section_.nan_parameter) continue;
    say(rank_, fmt::format("gets a NaN into the gradient of {} at step {}", p->name, step));
    stream.copy_from_host(p->gradient.data, &kNan, size_of(p->gradient.dtype));
  }
}

void Faults::flip_weight(std::int64_t step, ModelInstance& instance) const {
  if (section_.flip_rank < 0 || section_.flip_step != step) return;
  instance.gatherer().complete_update();  // otherwise it would overwrite the flipped bit
  if (section_.flip_rank != rank_) return;
  const Parameter* p = parameter_named(instance, section_.flip_parameter);
  say(rank_, fmt::format("has a bit of {} flipped after step {}", p->name, step));
  const auto [view, outside] = instance.storage().compared(*p);
  Device& device = instance.device();
  instance.stream().synchronize();
  auto* const there = static_cast<std::byte*>(view.data);
  std::byte byte{};
  if (outside || device.host_visible()) {
    *there ^= std::byte{1};
  } else {
    device.copy_to_host(&byte, there, 1);
    byte ^= std::byte{1};
    device.copy_from_host(there, &byte, 1);
  }
}

FaultHook Faults::in_save(const std::int64_t& current_step) const {
  const FaultSection& f = section_;
  if (!f.enable) return {};
  return [f, rank = rank_, directory = directory_, &current_step](const char* instant_name) {
    const std::string_view instant = instant_name;
    const std::int64_t step = current_step;
    if (f.kill_in_save == instant && (f.kill_rank < 0 || f.kill_rank == rank) &&
        (f.kill_step < 0 || f.kill_step == step)) {
      say(rank, fmt::format("is killed at \"{}\" of the save of step {}", instant, step));
      raise(SIGKILL);
    }
    if (f.disk_full_step == step && instant == "reserve") {
      say(rank, fmt::format("finds no space for the save of step {}", step));
      throw StorageError("no space left on device, as fault.disk_full_step asks",
                         "free some space");
    }
    if (f.write_fail_step == step && f.write_fail_rank == rank && instant == "write") {
      say(rank, fmt::format("cannot write its part of the save of step {}", step));
      throw StorageError("input/output error, as fault.write_fail_step asks");
    }
    if (f.write_short_step == step && instant == "written") {
      say(rank, fmt::format("loses the second half of what the save of step {} wrote", step));
      truncate_file(directory.temporary_path(step) + "/" + kStateName);
    }
    const std::string state = directory.final_path(step) + "/" + kStateName;
    if (f.truncate_save_step == step && instant == "prune") {
      say(rank, "truncates " + state);
      truncate_file(state);
    }
    if (f.corrupt_save_step == step && instant == "prune") {
      say(rank, "inverts a byte of " + state);
      corrupt_file(state);
    }
  };
}

}  // namespace choir
