#include "choir/parallel/sharding/parameter_storage.hpp"

#include <algorithm>

#include "choir/core/error.hpp"
#include "kernels/sums/sums.hpp"
#include "src/comm/agreement.hpp"
#include "src/core/hash.hpp"
#include "src/device/cpu_device.hpp"
#include "src/parallel/sharding/packed_parameters.hpp"

namespace choir {

OffloadedState::OffloadedState(const OffloadOptions& options, const Precision& precision,
                               Contents contents, const Sizes& sizes, Device& device,
                               Communicator& world)
    : chunk_(options.chunk) {
  constexpr std::size_t kInMemory = gradient;  // the fields before it
  const std::array<DType, kInMemory> types{precision.master, precision.moment, precision.moment,
                                           precision.compute, precision.gradient};
  const std::array<bool, kInMemory> kept{contents.masters, true, options.second_moment,
                                         contents.values, options.average};
  const std::array<std::int64_t, kInMemory> counts{sizes.masters, sizes.moments, sizes.moments,
                                                   sizes.values, sizes.moments};
  std::array<std::size_t, kInMemory> at{};
  std::size_t end = 0;
  for (std::size_t f = 0; f < kInMemory; ++f) {
    at[f] = end;
    if (kept[f]) end += static_cast<std::size_t>(counts[f]) * size_of(types[f]);
  }
  const auto make = [&] {
    memory_ = options.place == MemoryPlace::file
                  ? OffloadMemory::in_file(device, end, options.directory)
                  : OffloadMemory::on_host(device, end);
  };
  device.kind() == DeviceKind::null ? make() : together(world, make);
  for (std::size_t f = 0; f < kInMemory; ++f)
    if (kept[f]) fields_[f] = {memory_.data() + at[f], types[f], {counts[f]}};
}

std::size_t OffloadedState::offset(Field field, std::int64_t first) const {
  const TensorView& view = of(field);
  return static_cast<std::size_t>(static_cast<const std::byte*>(view.data) - memory_.data()) +
         static_cast<std::size_t>(first) * size_of(view.dtype);
}

namespace {

std::uint32_t crc_on(Device& device, bool outside, const std::byte* data, std::size_t bytes,
                     std::uint32_t crc) {
  if (outside || device.host_visible()) return crc32c(data, bytes, crc);
  constexpr std::size_t kChunk = std::size_t{4} << 20;
  std::vector<std::byte> host(std::min(bytes, kChunk));
  for (std::size_t at = 0; at < bytes; at += kChunk) {
    const std::size_t now = std::min(kChunk, bytes - at);
    device.copy_to_host(host.data(), data + at, now);
    crc = crc32c(host.data(), now, crc);
  }
  return crc;
}

/// Two 32-bit registers over the two halves, so that all 64 bits are significant.
std::uint64_t digest_of_memory(Device& device, bool outside, const TensorView& x,
                               std::uint64_t digest) {
  const auto* bytes = static_cast<const std::byte*>(x.data);
  const std::size_t half = x.bytes() / 2;
  const auto low = crc_on(device, outside, bytes, half, static_cast<std::uint32_t>(digest));
  const auto high = crc_on(device, outside, bytes + half, x.bytes() - half,
                           static_cast<std::uint32_t>(digest >> 32));
  return (std::uint64_t{high} << 32) | low;
}

}  // namespace

ParameterStorage::ParameterStorage(ParameterSet& parameters, const Precision& precision,
                                   Device& device, Sharding sharding, bool training,
                                   const OffloadOptions& offloads, Communicator* world)
    : parameters_(&parameters),
      precision_(precision),
      device_(&device),
      sharding_(std::move(sharding)) {
  if (precision.packing != Packing::none) parameters.pack();
  parameters.place(sharding_.slices());
  if (parameters.packed_size() > 0)
    packed_ = std::make_shared<PackedParameters>(parameters, precision.packing, device, sharding_);
  const std::int64_t n = parameters.flat_size(), mine = slices_size();
  const auto bytes = [](std::int64_t count, DType type) {
    return static_cast<std::size_t>(count) * size_of(type);
  };
  // Zeroed: the padding of whole buckets must stay zero forever.
  const auto own = [&](Buffer& memory, std::int64_t count, DType type) {
    memory = Buffer(device, bytes(count, type));
    if (count > 0) device.zero(memory.data(), memory.bytes());
    return TensorView{memory.data(), type, {count}};
  };
  const auto shared = [&](CommMemory& memory, Communicator& comm, std::int64_t count, DType type) {
    if (count > 0) memory = CommMemory(device, comm, bytes(count, type));
    return TensorView{count > 0 ? memory.data() : nullptr, type, {count}};
  };
  const bool whole_values = !sharding_.values_sharded();
  if (training && offloads.on(device).any()) offload(offloads, world ? *world : sharding_.data());
  if (masters_outside())
    masters_ = offloaded_->of(OffloadedState::master);
  else if (!masters_are_values() || sharding_.stage() == 0)
    masters_ = own(master_memory_, masters_size(), precision.master);
  if (!whole_values && masters_outside() && precision.has_copy())
    slice_values_ = parameters_outside_ ? offloaded_->of(OffloadedState::value)
                                        : own(copy_memory_, mine, precision.compute);
  else if (!whole_values)
    narrow_ = own(narrow_memory_, mine - masters_size(), precision.compute);
  if (sharding_.stage() == 0)
    values_ = precision.has_copy() ? own(copy_memory_, n, precision.compute) : masters_;
  else if (whole_values)
    values_ = shared(value_memory_, sharding_.gathers(), n, precision.compute);
  const bool gradients_outside = training && offloads.on(device).gradient_sums > 0;
  CHOIR_CHECK(!gradients_outside || sharding_.gradients_sharded(),
              "gradients outside of the device with ZeRO stage {}", sharding_.stage());
  if (gradients_outside)
    slice_gradients_ = offload_gradients(offloads, world ? *world : sharding_.data());
  else if (training && sharding_.gradients_sharded())
    slice_gradients_ = own(slice_gradient_memory_, trained_slices_size(), precision.gradient);
  else if (training)
    gradients_ =
        shared(gradient_memory_, sharding_.group(), parameters.trained_size(), precision.gradient);
  const bool whole_masters = sharding_.slices() == 1 || masters_are_values();
  parameters.bind(precision, values_.data,
                  !whole_masters         ? nullptr
                  : masters_are_values() ? values_.data
                                         : masters_.data,
                  gradients_.data);
  bind_narrow();
}

void ParameterStorage::bind_narrow() {
  for (const Bucket& bucket : parameters_->buckets()) {
    if (!narrow(bucket)) continue;
    TensorView whole;
    if (!sharding_.values_sharded())
      whole = part(values_, bucket);
    else if (sharding_.slices() == 1)
      whole = masters(bucket);
    for (Parameter* p : bucket.parameters) {
      p->master = {nullptr, precision_.frozen, p->local};
      if (whole.data != nullptr) p->master.data = whole.slice(p->offset, p->local_count()).data;
    }
  }
}

void ParameterStorage::offload(const OffloadOptions& options, Communicator& world) {
  parameters_outside_ = options.parameters;
  CHOIR_CHECK(!parameters_outside_ || sharding_.values_sharded(),
              "parameters outside of the device with ZeRO stage {}", sharding_.stage());
  offloaded_.emplace(
      options, precision_,
      OffloadedState::Contents{.masters = precision_.has_copy() || parameters_outside_,
                               .values = precision_.has_copy() && parameters_outside_},
      OffloadedState::Sizes{
          .masters = masters_size(), .values = slices_size(), .moments = trained_slices_size()},
      *device_, world);
}

TensorView ParameterStorage::offload_gradients(const OffloadOptions& options, Communicator& world) {
  offload_chunk_ = options.chunk;
  const DType type = precision_.gradient;
  const std::int64_t slices = trained_slices_size();
  const auto bytes = static_cast<std::size_t>(slices * options.gradient_sums) *
                     static_cast<std::size_t>(size_of(type));
  const bool to_file = options.place == MemoryPlace::file && device_->host_visible();
  const auto make = [&] {
    gradients_outside_ = to_file ? OffloadMemory::in_file(*device_, bytes, options.directory)
                                 : OffloadMemory::on_host(*device_, bytes);
  };
  device_->kind() == DeviceKind::null ? make() : together(world, make);
  const TensorView view{gradients_outside_.data(), type, {slices}};
  if (!device_->host_visible()) offloaded_->show_gradients(view);
  return view;
}

TensorView ParameterStorage::gradient_level(std::size_t level, const Bucket& bucket) const {
  const std::int64_t slices = trained_slices_size();
  const auto sums =
      static_cast<std::int64_t>(gradients_outside_.bytes() / slice_gradients_.bytes());
  const TensorView all{gradients_outside_.data(), precision_.gradient, {slices * sums}};
  return slice_of(all.slice((1 + static_cast<std::int64_t>(level)) * slices, slices), bucket);
}

TensorView ParameterStorage::narrow_slice(const Bucket& bucket) const {
  if (!slice_values_.empty()) return slice_of(slice_values_, bucket);
  const std::int64_t slices = sharding_.slices();
  return narrow_.slice((bucket.offset - parameters_->trained_size()) / slices,
                       bucket.size / slices);
}

TensorView ParameterStorage::masters(const Bucket& bucket) const {
  CHOIR_CHECK(!bucket.packed, "bucket {} is packed: it has no masters", bucket.name);
  const bool narrowed = narrow(bucket);
  if (narrowed && sharding_.values_sharded()) return narrow_slice(bucket);
  if (!narrowed && !masters_are_values()) return slice_of(masters_, bucket);
  const Range mine = sharding_.slice(bucket);
  return part(values_, bucket).slice(mine.first, mine.count);
}

TensorView ParameterStorage::gradients(const Bucket& bucket) const {
  CHOIR_CHECK(bucket.trainable, "bucket {} is frozen: it has no gradients", bucket.name);
  if (sharding_.gradients_sharded()) return slice_of(slice_gradients_, bucket);
  const Range mine = sharding_.slice(bucket);
  return part(gradients_, bucket).slice(mine.first, mine.count);
}

TensorView ParameterStorage::copies(const Bucket& bucket) const {
  if (narrow(bucket) || bucket.packed) return {};
  if (!slice_values_.empty()) return slice_of(slice_values_, bucket);
  if (!precision_.has_copy() || sharding_.values_sharded()) return {};
  const Range mine = sharding_.slice(bucket);
  return part(values_, bucket).slice(mine.first, mine.count);
}

TensorView ParameterStorage::gathered_from(const Bucket& bucket) const {
  const TensorView slices = copies(bucket);
  return slices.empty() ? masters(bucket) : slices;
}

void ParameterStorage::refresh_copies(const Stream& stream) const {
  if (offloaded_) stream.synchronize();  // the host may read the data that it copies
  for (const Bucket& bucket : parameters_->buckets()) {
    const TensorView to = copies(bucket);
    if (to.empty()) continue;
    masters_outside(bucket) && !device_->host_visible() ? cast_outside(masters(bucket), to)
                                                        : ops::cast(stream, masters(bucket), to);
  }
  if (offloaded_) offloaded_->memory().rest();
}

// If the device cannot see the masters, the host casts; all devices round alike.
void ParameterStorage::cast_outside(const TensorView& from, const TensorView& to) const {
  if (device_->kind() == DeviceKind::null) return;
  CpuDevice cpu;
  if (parameters_outside_) return ops::cast(Stream(cpu), from, to);
  std::vector<std::byte> staged;
  for (std::int64_t at = 0; at < from.count(); at += OffloadOptions::kChunk) {
    const std::int64_t count = std::min(OffloadOptions::kChunk, from.count() - at);
    const TensorView there = to.slice(at, count);
    staged.resize(there.bytes());
    ops::cast(Stream(cpu), from.slice(at, count), {staged.data(), to.dtype, {count}});
    device_->copy_from_host(there.data, staged.data(), staged.size());
  }
}

TensorView ParameterStorage::owned_part(const TensorView& slice, const Parameter& p) const {
  const Bucket& bucket = bucket_of(p);
  const Range mine = sharding_.owned(bucket, p);
  if (mine.count == 0) return {nullptr, slice.dtype, {0}};
  return slice.slice(p.offset + mine.first - sharding_.slice(bucket).first, mine.count);
}

void ParameterStorage::initialise(std::uint64_t seed, bool packed) {
  if (device_->kind() == DeviceKind::null) return;
  if (packed) initialise_packed(seed);
  std::vector<std::byte> host;
  for (const Parameter& p : parameters_->parameters()) {
    const Bucket& bucket = bucket_of(p);
    if (bucket.packed) continue;
    const TensorView to = owned_part(masters(bucket), p);
    const std::int64_t first = owned(p).first;
    if (to.count() == 0) continue;
    if (masters_outside(bucket) || device_->host_visible()) {
      choir::initialise(p, seed, to, first);
      continue;
    }
    host.assign(to.bytes(), std::byte{0});
    choir::initialise(p, seed, {host.data(), to.dtype, to.shape}, first);
    device_->copy_from_host(to.data, host.data(), host.size());
  }
}

// Every rank quantises the whole matrix, as if it had been read.
void ParameterStorage::initialise_packed(std::uint64_t seed) {
  std::vector<float> host;
  for (const Parameter* p : parameters_->all()) {
    if (!p->packed || !PackedParameters::resident(*p)) continue;
    Parameter whole = *p;
    whole.shard = {};
    whole.split = {};
    whole.local = p->shape;
    host.assign(static_cast<std::size_t>(p->count()), 0.0f);
    choir::initialise(whole, seed, {host.data(), DType::f32, {p->count()}});
    packed_->pack(*p, host.data());
  }
}

void ParameterStorage::begin_gradients(const Stream& stream, const Bucket& bucket) {
  for (Parameter* p : bucket.parameters) {
    p->gradient_live = !p->gradient_overwritten;
    if (!p->gradient_overwritten) ops::zero(stream, p->gradient);
  }
}

std::uint64_t ParameterStorage::digest(bool whole_only) const {
  if (device_->kind() == DeviceKind::null) return 0;
  std::uint64_t digest = 0;
  for (const Parameter& p : parameters_->parameters())
    if (!whole_only || p.shard.split_dim < 0) digest = digest_of(p, digest);
  return sharding_.values_sharded() ? exchanged(digest) : digest;
}

std::pair<TensorView, bool> ParameterStorage::compared(const Parameter& p) const {
  const Bucket& bucket = bucket_of(p);
  if (p.packed) return {packed_->codes(p), false};
  if (sharding_.values_sharded()) return {owned_part(masters(bucket), p), masters_outside(bucket)};
  if (sharding_.stage() == 0) return {p.master, masters_outside(bucket)};
  return {p.value, false};
}

std::uint64_t ParameterStorage::digest_of(const Parameter& p, std::uint64_t digest) const {
  if (p.packed) {
    digest = digest_of_memory(*device_, false, packed_->scales(p), digest);
    return digest_of_memory(*device_, false, packed_->codes(p), digest);
  }
  const auto [view, outside] = compared(p);
  if (outside) device_->synchronize(device_->main_stream());
  return digest_of_memory(*device_, outside, view, digest);
}

// The exchange uses device memory, which the communicator of the group requires.
std::uint64_t ParameterStorage::exchanged(std::uint64_t digest) const {
  Communicator& group = sharding_.group();
  std::vector<std::uint64_t> all(static_cast<std::size_t>(group.size()));
  const std::size_t one = sizeof digest, bytes = all.size() * one;
  const Buffer there(*device_, bytes);
  auto* mine = static_cast<std::byte*>(there.data()) + static_cast<std::size_t>(group.rank()) * one;
  device_->copy_from_host(mine, &digest, one);
  group.all_gather(there.data(), 1, DType::i64);
  const Stream stream(*device_);
  stream.copy_to_host(all.data(), there.data(), bytes);
  stream.synchronize();
  return (std::uint64_t{crc32c(all.data(), bytes, 1)} << 32) | crc32c(all.data(), bytes);
}

void ParameterStorage::add_to(MemoryPlan& plan) const {
  if (master_memory_.bytes() > 0) plan.add("parameters, master", master_memory_.bytes());
  const std::string values =
      precision_.has_copy() ? "parameters, compute copy" : "parameters, master";
  if (copy_memory_.bytes() + narrow_memory_.bytes() > 0)
    plan.add(values, copy_memory_.bytes() + narrow_memory_.bytes());
  if (offloaded_) add_outside_to(plan);
  if (packed_) plan.add("parameters, packed", packed_->bytes());
  if (value_memory_.bytes() > 0) plan.add(values, value_memory_.bytes(), value_memory_.shared());
  if (!gradients_.empty())
    plan.add("gradients", gradient_memory_.bytes(), gradient_memory_.shared());
  if (slice_gradients_.empty()) return;
  if (gradient_place() == MemoryPlace::device)
    return plan.add("gradients, slice", slice_gradient_memory_.bytes());
  const std::size_t slices = slice_gradients_.bytes();
  plan.add("gradients, slice", slices, false, gradient_place());
  if (const std::size_t tree = gradients_outside_.bytes() - slices; tree > 0)
    plan.add("gradients, reproducible tree", tree, false, gradient_place());
}

void ParameterStorage::add_outside_to(MemoryPlan& plan) const {
  const OffloadedState& state = *offloaded_;
  const auto add = [&](const char* name, OffloadedState::Field field) {
    if (state.has(field)) plan.add(name, state.of(field).bytes(), false, state.place());
  };
  add("parameters, master", OffloadedState::master);
  add("parameters, compute copy", OffloadedState::value);
  add("optimizer moments", OffloadedState::first_moment);
  add("optimizer moments", OffloadedState::second_moment);
}

}  // namespace choir
