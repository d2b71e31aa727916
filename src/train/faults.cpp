#include "choir/train/faults.hpp"

#include <unistd.h>

#include <csignal>
#include <limits>

namespace choir {
namespace {

constexpr unsigned kForever = 1u << 20;

}  // namespace

void Faults::at(std::int64_t step, std::string_view place) const {
  if (section_.phase != place) return;
  if (section_.kill_rank == rank_ && section_.kill_step == step) raise(SIGKILL);
  if (section_.hang_rank == rank_ && section_.hang_step == step) sleep(kForever);
  if (section_.throw_rank == rank_ && section_.throw_step == step)
    throw CommError(fmt::format("rank {} throws {} step {}, as fault.throw_step asks", rank_,
                                place == "start" ? "before" : fmt::format("in {} of", place),
                                step));
}

double Faults::valid_tokens(std::int64_t step, double tokens) const {
  return section_.nan_step == step ? std::numeric_limits<double>::quiet_NaN() : tokens;
}

FaultHook Faults::in_save(const std::int64_t& current_step) const {
  if (section_.kill_in_save.empty() && section_.disk_full_step < 0) return {};
  return [section = section_, rank = rank_, &current_step](const char* instant) {
    const bool victim = section.kill_rank < 0 || section.kill_rank == rank;
    if (section.kill_in_save == instant && victim) raise(SIGKILL);
    if (section.disk_full_step == current_step && std::string(instant) == "reserve")
      throw StorageError("no space left on device, as fault.disk_full_step asks",
                         "free some space");
  };
}

}  // namespace choir
