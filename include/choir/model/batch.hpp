#pragma once
// One micro-batch as a model reads it: a bundle of views of host or device memory. A model uses the
// fields of its kind; the others are empty.
#include <array>
#include <cstdint>

#include "choir/core/tensor.hpp"

namespace choir {

struct ModelBatch {
  std::int64_t samples = 0;       ///< B: sequences or utterances; all share one padded length
  std::int64_t first_sample = 0;  ///< global index of the first, where they are consecutive
  /// Device scalar added to first_sample; nullptr: 0.
  const std::int64_t* first_sample_on_device = nullptr;

  // Tokens.
  TensorView inputs, targets;  ///< [B*T] i32; targets < 0 are ignored

  // Speech. Padding is zero.
  TensorView audio;          ///< [B, S] i16 PCM
  TensorView audio_lengths;  ///< [B] i32, samples; 0: a row of padding
  /// [stages + 1, B] i32: frames that count, row 0 of the features, row k after the k-th halving
  /// of time. A function of audio_lengths (FastConformerConfig::lengths_after).
  TensorView frame_lengths;
  TensorView
      sample_ids;     ///< [B] i64: what random numbers of a row are functions of, beside the seed
  TensorView labels;  ///< [B, U] i32, padding -1
  TensorView label_lengths;  ///< [B] i32

  double scale = 1;                      ///< of the sum of losses whose gradient backward prepares
  const double* device_scale = nullptr;  ///< device scalar that multiplies it; nullptr: 1

  /// What is copied when a batch moves from host to device memory.
  std::array<TensorView*, 8> fields() {
    return {&inputs,        &targets,    &audio,  &audio_lengths,
            &frame_lengths, &sample_ids, &labels, &label_lengths};
  }
};

/// How large micro-batches are at most: memory is planned for each of these.
struct BatchShape {
  std::int64_t samples = 0;        ///< B
  std::int64_t tokens = 0;         ///< T of token models
  std::int64_t audio_samples = 0;  ///< S of speech models
  std::int64_t labels = 0;         ///< U of speech models
};

}  // namespace choir
