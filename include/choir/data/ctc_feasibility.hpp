#pragma once
// Whether CTC can spell its labels in the frames it gets: a path needs a frame for every label and
// a blank between equal ones (Graves et al. 2006, 3.1). Pure functions.
#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "choir/ops/log_mel.hpp"

namespace choir {

/// labels + labels that repeat their neighbour: the fewest frames in which they can be spelled.
std::int64_t ctc_least_frames(std::span<const std::int32_t> labels);

/// Frames that a subsampling of 2, 4 or 8 makes of feature frames: ceil(n / 2) a halving, causal
/// floor(n / 2) + 1 (of 0 none), as FastConformerConfig::frames().
std::int64_t subsampled_frames(std::int64_t feature_frames, std::int64_t subsampling, bool causal);

inline constexpr std::array<std::int64_t, 3> kCtcSubsamplings = {2, 4, 8};

struct CtcUtterance {
  std::int64_t samples = 0, least_frames = 0;
};

struct CtcFeasibility {
  std::int64_t utterances = 0;
  std::array<std::int64_t, 3> impossible{};  ///< utterances, by kCtcSubsamplings

  double share(std::size_t i) const {
    return utterances == 0 ? 0
                           : static_cast<double>(impossible[i]) / static_cast<double>(utterances);
  }
  /// The largest subsampling below `subsampling` with which no utterance is impossible; 0: none.
  std::int64_t cure(std::int64_t subsampling) const;
  CtcFeasibility& operator+=(const CtcFeasibility& other);
};
/// May be called on parts and added up.
CtcFeasibility ctc_feasibility(std::span<const CtcUtterance> utterances,
                               const ops::MelOptions& features, bool causal);

/// What to tell before a training with `subsampling` (2, 4 or 8), a line without its end; empty if
/// every utterance is possible. Names the share at each subsampling and what cures it. `unit`: what
/// a label stands for ("char", "bpe", ...); `frames_per_second`: of features.
std::string ctc_warning(const CtcFeasibility& found, std::int64_t subsampling,
                        const std::string& unit, double frames_per_second);

}  // namespace choir
