#include "kernels/spec_augment/spec_augment.hpp"

#include <algorithm>

#include "kernels/cpu/parallel.hpp"

namespace choir::cpu {

template <class T>
void spec_augment(const ops::SpecAugment& options, const TensorView& x, const std::int32_t* lengths,
                  const std::int64_t* sample_ids, PhiloxKey key) {
  const std::int64_t frames = x.shape[1], bins = x.shape[2];
  parallel_ranges(x.shape[0], frames * bins / 4, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t b = first; b < last; ++b) {
      T* row = x.as<T>() + b * frames * bins;
      for (std::int64_t i = 0; i < options.time_masks; ++i) {
        const Mask mask =
            time_mask(options, key, static_cast<std::uint32_t>(i), sample_ids[b], lengths[b]);
        std::fill_n(row + mask.start * bins, mask.width * bins, T(0));
      }
      for (std::int64_t i = 0; i < options.frequency_masks; ++i) {
        const Mask mask =
            frequency_mask(options, key, static_cast<std::uint32_t>(i), sample_ids[b], bins);
        for (std::int64_t t = 0; t < lengths[b]; ++t)
          std::fill_n(row + t * bins + mask.start, mask.width, T(0));
      }
    }
  });
}

template void spec_augment<float>(const ops::SpecAugment&, const TensorView&, const std::int32_t*,
                                  const std::int64_t*, PhiloxKey);
template void spec_augment<double>(const ops::SpecAugment&, const TensorView&, const std::int32_t*,
                                   const std::int64_t*, PhiloxKey);

}  // namespace choir::cpu
