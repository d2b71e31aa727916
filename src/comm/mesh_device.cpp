// Mesh: communicators for device memory.
#include <utility>

#include "choir/comm/agreement.hpp"
#include "choir/comm/call_check.hpp"
#include "choir/comm/mesh.hpp"
#include "choir/comm/nccl_communicator.hpp"
#include "choir/comm/null_communicator.hpp"
#include "choir/comm/staged_communicator.hpp"
#include "choir/core/error.hpp"

namespace choir {
namespace {

using Way = DeviceTransport::Way;

/// Why this rank cannot use NCCL; empty when it can.
std::string nccl_obstacle(const Device& device, const DeviceTransport& transport) {
  if (device.kind() != DeviceKind::cuda)
    return fmt::format("the {} device does not know NCCL", name_of(device.kind()));
  if (transport.shared_cards) return "ranks share a GPU, which NCCL does not allow";
  return nccl_availability(transport.nccl_library).reason;
}

}  // namespace

void Mesh::attach(Device& device, const DeviceTransport& transport) {
  if (device.host_visible()) return;
  if (planned_) {
    for (int a = 0; a < kAxes; ++a) {
      const Communicator& host = host_along(static_cast<Axis>(a));
      device_axes_[static_cast<std::size_t>(a)] =
          make_null_communicator(host.name(), host.rank(), host.size(), &device);
    }
    if (replicas_)
      device_replicas_ =
          make_null_communicator(replicas_->name(), replicas_->rank(), replicas_->size(), &device);
    return;
  }
  const bool wanted = transport.way != Way::staged && world_->size() > 1;
  const std::string obstacle = wanted ? nccl_obstacle(device, transport) : "";
  if (transport.way == Way::nccl)
    together(*world_, [&] {
      if (!obstacle.empty())
        throw DeckError("parallel.transport is \"nccl\", but " + obstacle,
                        "set parallel.transport to \"auto\" or \"staged\"");
    });
  std::int32_t able = wanted && obstacle.empty();
  world_->all_reduce(&able, 1, DType::i32, ReduceOp::min);
  if (wanted && able == 0)
    transport_note_ = obstacle.empty() ? "NCCL cannot be used on another rank" : obstacle;
  int groups = replicas_ ? 1 : 0;
  for (int a = 0; a < kAxes; ++a) groups += layout_.size(static_cast<Axis>(a)) > 1;
  const auto make = [&](Communicator& host, std::vector<int> ranks) {
    if (able == 0 || host.size() == 1) return make_staged_communicator(host, device, host.name());
    return make_nccl_communicator(host, device, host.name(),
                                  {.timeout_seconds = transport.timeout_seconds,
                                   .library = transport.nccl_library,
                                   .ranks = std::move(ranks),
                                   .communicators = groups});
  };
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    device_axes_[static_cast<std::size_t>(a)] =
        make(host_along(axis), layout_.group(rank_, {axis}));
  }
  if (replicas_) device_replicas_ = make(*replicas_, replica_ranks());
}

// World ranks of each group are named. Device communicators are checked by way of the host.
void Mesh::check_calls() {
  const auto check = [](Communicator* checked, Communicator& host, std::vector<int> ranks) {
    if (checked == nullptr || host.size() == 1) return;
    checked->check_calls(std::make_unique<CallCheck>(host.duplicate(host.name() + " (check)"),
                                                     checked->name(), std::move(ranks)));
  };
  std::vector<int> everyone;
  for (int r = 0; r < layout_.ranks(); ++r) everyone.push_back(r);
  check(world_.get(), *world_, everyone);
  for (int a = 0; a < kAxes; ++a) {
    const auto axis = static_cast<Axis>(a);
    const std::vector<int> ranks = layout_.group(rank_, {axis});
    check(axes_[static_cast<std::size_t>(a)].get(), host_along(axis), ranks);
    check(device_axes_[static_cast<std::size_t>(a)].get(), host_along(axis), ranks);
  }
  if (!replicas_) return;
  check(replicas_.get(), *replicas_, replica_ranks());
  check(device_replicas_.get(), *replicas_, replica_ranks());
}

}  // namespace choir
