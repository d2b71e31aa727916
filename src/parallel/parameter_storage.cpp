#include "choir/parallel/parameter_storage.hpp"

#include <algorithm>
#include <vector>

#include "choir/core/crc32c.hpp"
#include "choir/ops/reduce.hpp"

namespace choir {
namespace {

std::uint32_t crc_on(Device& device, const std::byte* data, std::size_t bytes, std::uint32_t crc) {
  if (device.host_visible()) return crc32c(data, bytes, crc);
  constexpr std::size_t kChunk = std::size_t{4} << 20;
  std::vector<std::byte> host(std::min(bytes, kChunk));
  for (std::size_t at = 0; at < bytes; at += kChunk) {
    const std::size_t now = std::min(kChunk, bytes - at);
    device.copy_to_host(host.data(), data + at, now);
    crc = crc32c(host.data(), now, crc);
  }
  return crc;
}

}  // namespace

ParameterStorage::ParameterStorage(ParameterSet& parameters, const Precision& precision,
                                   Device& device, Communicator& data, bool training)
    : parameters_(&parameters), precision_(precision), device_(&device) {
  parameters.place(data.size());
  const std::int64_t n = parameters.flat_size();
  const auto bytes = [&](DType type) { return static_cast<std::size_t>(n) * size_of(type); };
  const auto flat = [&](void* memory, DType type) { return TensorView{memory, type, {n}}; };
  master_memory_ = Buffer(device, bytes(precision.master));
  masters_ = flat(master_memory_.data(), precision.master);
  if (precision.has_copy()) value_memory_ = Buffer(device, bytes(precision.compute));
  values_ = precision.has_copy() ? flat(value_memory_.data(), precision.compute) : masters_;
  // Memory of the device where nobody reduces it, and in a plan.
  const bool own =
      device.kind() == DeviceKind::null || (data.size() == 1 && !device.host_visible());
  if (training && own)
    own_gradients_ = Buffer(device, bytes(precision.gradient));
  else if (training)
    gradient_memory_ = data.allocate(bytes(precision.gradient));
  if (training) {
    gradients_ = flat(own ? own_gradients_.data() : gradient_memory_->data(), precision.gradient);
    device.zero(gradients_.data, gradients_.bytes());  // the padding stays zero for ever
  }
  device.zero(masters_.data, masters_.bytes());
  if (precision.has_copy()) device.zero(values_.data, values_.bytes());
  parameters.bind(precision, values_.data, masters_.data, gradients_.data);
}

void ParameterStorage::initialise(std::uint64_t seed) {
  if (device_->kind() == DeviceKind::null) return;
  std::vector<std::byte> host;
  for (const Parameter& p : parameters_->parameters()) {
    if (device_->host_visible()) {
      choir::initialise(p, seed, p.master);
      continue;
    }
    host.assign(p.master.bytes(), std::byte{0});
    choir::initialise(p, seed, {host.data(), p.master.dtype, p.local});
    device_->copy_from_host(p.master.data, host.data(), host.size());
  }
  publish(Stream(*device_));
}

void ParameterStorage::publish(const Stream& stream) {
  if (precision_.has_copy()) ops::cast(stream, masters_, values_);
}

void ParameterStorage::begin_gradients(const Stream& stream) {
  for (Parameter& p : parameters_->parameters()) {
    p.gradient_live = !p.gradient_overwritten;
    if (!p.gradient_overwritten) ops::zero(stream, p.gradient);
  }
}

std::uint64_t ParameterStorage::digest(bool whole_only) const {
  if (device_->kind() == DeviceKind::null) return 0;
  std::uint64_t digest = 0;
  for (const Parameter& p : parameters_->parameters()) {
    if (whole_only && p.shard.split_dim >= 0) continue;
    const auto* bytes = static_cast<const std::byte*>(p.master.data);
    // Two registers over the two halves, so that 64 bits mean something.
    const std::size_t half = p.master.bytes() / 2;
    const auto low = crc_on(*device_, bytes, half, static_cast<std::uint32_t>(digest));
    const auto high = crc_on(*device_, bytes + half, p.master.bytes() - half,
                             static_cast<std::uint32_t>(digest >> 32));
    digest = (std::uint64_t{high} << 32) | low;
  }
  return digest;
}

void ParameterStorage::add_to(MemoryPlan& plan) const {
  plan.add("parameters, master", masters_.bytes());
  if (precision_.has_copy()) plan.add("parameters, compute copy", values_.bytes());
  if (!gradients_.empty()) plan.add("gradients", gradients_.bytes(), gradients_shared());
}

}  // namespace choir
