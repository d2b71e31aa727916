#include "kernels/dropout/dropout.hpp"

namespace choir::ref {

void dropout(const ops::Dropout& args) {
  const std::int64_t width = args.in.shape.back();
  for (std::int64_t i = 0; i < args.in.count(); ++i) {
    const std::int64_t r = i / width, c = args.first_column + i % width;
    const std::int64_t first =
        args.first_sample + (args.first_sample_on_device ? *args.first_sample_on_device : 0);
    const auto sample = static_cast<std::uint64_t>(
        args.sample_ids ? args.sample_ids[r / args.tokens] : first + r / args.tokens);
    const PhiloxBlock block = philox(
        args.key, {static_cast<std::uint32_t>(c / 4),
                   static_cast<std::uint32_t>(args.first_position + r % args.tokens),
                   static_cast<std::uint32_t>(sample), static_cast<std::uint32_t>(sample >> 32)});
    const bool keep =
        static_cast<double>(block[static_cast<std::size_t>(c % 4)]) >= args.probability * 0x1p32;
    args.out.as<double>()[i] =
        keep ? args.in.as<double>()[i] * args.factor / (1 - args.probability) : 0;
  }
}

}  // namespace choir::ref
