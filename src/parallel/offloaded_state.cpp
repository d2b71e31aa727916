#include "choir/parallel/offloaded_state.hpp"

#include "choir/comm/agreement.hpp"
#include "choir/core/error.hpp"

namespace choir {

OffloadedState::OffloadedState(const OffloadOptions& options, const Precision& precision,
                               Contents contents, std::int64_t slices_size,
                               std::int64_t trained_size, Device& device, Communicator& world)
    : chunk_(options.chunk) {
  const std::array<DType, kFields> types{precision.master, precision.gradient, precision.gradient,
                                         precision.compute};
  const std::array<bool, kFields> kept{contents.masters, true, true, contents.values};
  const std::array<std::int64_t, kFields> sizes{slices_size, trained_size, trained_size,
                                                slices_size};
  std::array<std::size_t, kFields> at{};
  std::size_t end = 0;
  for (std::size_t f = 0; f < kFields; ++f) {
    at[f] = end;
    if (kept[f]) end += static_cast<std::size_t>(sizes[f]) * size_of(types[f]);
  }
  const auto make = [&] {
    memory_ = options.place == MemoryPlace::file
                  ? OffloadMemory::in_file(device, end, options.directory)
                  : OffloadMemory::on_host(device, end);
  };
  device.kind() == DeviceKind::null ? make() : together(world, make);
  for (std::size_t f = 0; f < kFields; ++f)
    if (kept[f]) fields_[f] = {memory_.data() + at[f], types[f], {sizes[f]}};
}

std::size_t OffloadedState::offset(Field field, std::int64_t first) const {
  const TensorView& view = of(field);
  return static_cast<std::size_t>(static_cast<const std::byte*>(view.data) - memory_.data()) +
         static_cast<std::size_t>(first) * size_of(view.dtype);
}

}  // namespace choir
