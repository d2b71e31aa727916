#include "src/infer/host_scores.hpp"

namespace choir {
namespace {

// Converts in blocks, which compilers vectorise: every generated token has a row as long as the
// vocabulary.
template <class T, class To>
void widen(const void* from, std::span<To> to) {
  const T* const data = static_cast<const T*>(from);
  const auto one = [](T x) {
    if constexpr (sizeof(T) == 2)
      return static_cast<To>(static_cast<float>(x));
    else
      return static_cast<To>(x);
  };
  constexpr std::size_t kBlock = 16;
  std::size_t i = 0;
  for (; i + kBlock <= to.size(); i += kBlock)
    for (std::size_t j = 0; j < kBlock; ++j) to[i + j] = one(data[i + j]);
  for (; i < to.size(); ++i) to[i] = one(data[i]);
}

template <class To>
void widen_any(const TensorView& from, std::span<To> to) {
  switch (from.dtype) {
    case DType::f64:
      return widen<double>(from.data, to);
    case DType::f32:
      return widen<float>(from.data, to);
    case DType::bf16:
      return widen<bf16>(from.data, to);
    default:
      return widen<f16>(from.data, to);
  }
}

}  // namespace

void to_floats(const TensorView& from, std::span<float> to) {
  widen_any(from, to);
}

void to_doubles(const TensorView& from, std::span<double> to) {
  widen_any(from, to);
}

bool look_at_scores(Device& device, const TensorView& scores, HostBuffer& memory,
                    const std::function<void(const TensorView&)>& look) {
  if (scores.empty() || device.kind() == DeviceKind::null) return false;
  TensorView host = scores;
  if (!device.host_visible()) {
    if (memory.bytes() < scores.bytes()) memory = HostBuffer(device, scores.bytes());
    device.copy_to_host(memory.data(), scores.data, scores.bytes());
    host.data = memory.data();
  }
  look(host);
  return true;
}

}  // namespace choir
