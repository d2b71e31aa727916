#include "src/comm/call_check.hpp"

#include <array>

#include "choir/core/error.hpp"

namespace choir {
namespace {

const char* name_of(ReduceOp op) {
  static constexpr std::array kNames{"sum", "max", "min"};
  return kNames[static_cast<std::size_t>(op)];
}

bool same(const PlannedCall& a, const PlannedCall& b) {
  return a.call == b.call && a.detail == b.detail && a.sequence == b.sequence && a.count == b.count;
}

}  // namespace

std::uint32_t detail_of(DType dtype, ReduceOp op) {
  return static_cast<std::uint32_t>(dtype) << 8 | static_cast<std::uint32_t>(op);
}

std::string describe(const PlannedCall& call) {
  const char* name = choir::name_of(call.call);
  const auto dtype = static_cast<DType>(call.detail >> 8 & 0xff);
  switch (call.call) {
    case CommCall::barrier:
      return name;
    case CommCall::all_reduce:
    case CommCall::reduce_scatter:
      return fmt::format("{} of {} {} ({})", name, call.count, choir::name_of(dtype),
                         name_of(static_cast<ReduceOp>(call.detail & 0xff)));
    case CommCall::all_gather:
      return fmt::format("{} of {} {}", name, call.count, choir::name_of(dtype));
    case CommCall::broadcast:
    case CommCall::reduce:
      return fmt::format("{} of {} bytes, root {}", name, call.count, call.detail);
    case CommCall::scatter:
    case CommCall::gather:
      return fmt::format("{} with root {}", name, call.detail);
    default:
      return fmt::format("{} of {} bytes", name, call.count);
  }
}

CallCheck::CallCheck(std::unique_ptr<Communicator> privately, std::string name,
                     std::vector<int> world_ranks)
    : private_(std::move(privately)),
      name_(std::move(name)),
      world_ranks_(std::move(world_ranks)),
      calls_(static_cast<std::size_t>(private_->size())) {
  CHOIR_CHECK(world_ranks_.size() == calls_.size(), "{} ranks of {}", world_ranks_.size(), name_);
  private_->silence();
}

void CallCheck::agree(const PlannedCall& mine) {
  static_assert(sizeof(PlannedCall) == 24);
  calls_[static_cast<std::size_t>(private_->rank())] = mine;
  private_->all_gather(calls_.data(), sizeof(PlannedCall), DType::u8);
  for (std::size_t r = 1; r < calls_.size(); ++r) {
    if (same(calls_[r], calls_[0])) continue;
    CommError error(fmt::format("{}: ranks disagree on call {}: rank {} calls {} where rank {} "
                                "calls {}{}",
                                name_, calls_[0].sequence, world_ranks_[r], describe(calls_[r]),
                                world_ranks_[0], describe(calls_[0]),
                                calls_[r].sequence == calls_[0].sequence
                                    ? ""
                                    : fmt::format(" (and counts {} calls)", calls_[r].sequence)),
                    "every rank of a communicator makes the same calls in the same order");
    error.set_agreed_ranks(private_->size());
    throw error;
  }
}

}  // namespace choir
