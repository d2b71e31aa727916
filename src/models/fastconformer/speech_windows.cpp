#include "src/models/fastconformer/speech_windows.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace choir {
namespace {

std::int64_t divided_up(std::int64_t x, std::int64_t y) {
  return (x + y - 1) / y;
}
std::int64_t rounded_up(std::int64_t x, std::int64_t multiple) {
  return divided_up(x, multiple) * multiple;
}

}  // namespace

SpeechReach reach_of(const FastConformerConfig& c) {
  const bool chunked = c.context_style == ContextStyle::chunked;
  SpeechReach reach{.align = chunked ? c.right_context + 1 : 1};
  // Features depend on half a transform (and one sample of pre-emphasis) on each side, the
  // subsampling on s - 1 features on each side or on 2 (s - 1) before.
  const std::int64_t half = divided_up(c.mel.fft / 2 + 1, c.mel.hop), s = c.subsampling;
  reach.left = divided_up((c.causal ? 2 : 1) * (s - 1) + half, s);
  reach.right = divided_up((c.causal ? 0 : s - 1) + half, s);
  const std::int64_t before = c.causal ? c.conv_kernel - 1 : (c.conv_kernel - 1) / 2;
  const std::int64_t behind = c.conv_kernel - 1 - before;
  for (std::int64_t layer = 0; layer < c.n_layer; ++layer) {
    reach.left = rounded_up(reach.left, reach.align) + std::max<std::int64_t>(0, c.left_context);
    reach.left += before;
    reach.right = rounded_up(reach.right, reach.align);
    if (!chunked) reach.right += std::max<std::int64_t>(0, c.right_context);
    reach.right += behind;
  }
  reach.left = rounded_up(reach.left, reach.align);
  reach.right = rounded_up(reach.right, reach.align);
  if (c.left_context < 0) reach.left = SpeechReach::kAll;
  if (c.right_context < 0) reach.right = SpeechReach::kAll;
  return reach;
}

WindowPlan plan_windows(const FastConformerConfig& config, std::int64_t wanted, std::int64_t most) {
  constexpr std::int64_t kFewestChunks = 8;
  const SpeechReach reach = reach_of(config);
  WindowPlan plan;
  const bool limited = reach.left != SpeechReach::kAll && reach.right != SpeechReach::kAll;
  if (limited) wanted = std::max(wanted, 4 * std::max(reach.left, reach.right));
  plan.frames = std::max(std::min(wanted, most) / reach.align, kFewestChunks) * reach.align;
  const auto overlap = [&](std::int64_t far) {
    if (far != SpeechReach::kAll && far <= plan.frames / 4) return far;
    const auto cap = static_cast<std::int64_t>(kOverlapSeconds / config.seconds_per_frame());
    return std::max<std::int64_t>(1, std::min(plan.frames / 8, cap) / reach.align) * reach.align;
  };
  plan.left = overlap(reach.left);
  plan.right = overlap(reach.right);
  plan.exact = limited && plan.left == reach.left && plan.right == reach.right && !config.normalise;
  return plan;
}

std::vector<RecordingWindow> windows_of(const WindowPlan& plan, std::int64_t frames,
                                        std::int64_t align) {
  if (frames <= plan.frames) return {{0, frames, 0, frames}};
  CHOIR_CHECK(plan.frames % align == 0 && plan.left % align == 0 && plan.right % align == 0 &&
                  plan.left + plan.right < plan.frames,
              "windows of {} frames with overlaps {} and {}", plan.frames, plan.left, plan.right);
  std::vector<RecordingWindow> windows;
  for (std::int64_t keep = 0; keep < frames;) {
    RecordingWindow window{.first = std::max<std::int64_t>(0, keep - plan.left),
                           .keep_first = keep};
    window.end = std::min(window.first + plan.frames, frames);
    window.keep_end = window.end == frames ? frames : window.end - plan.right;
    keep = window.keep_end;
    windows.push_back(window);
  }
  return windows;
}

std::vector<std::string> keys_against_streaming(const FastConformerConfig& c) {
  std::vector<std::string> keys;
  const auto add = [&](bool bad, std::string key) {
    if (bad) keys.push_back(std::move(key));
  };
  add(!c.causal, "model.causal = false");
  add(c.context_style != ContextStyle::chunked, "model.context_style = \"regular\"");
  add(c.left_context < 0, "model.left_context = -1");
  add(c.normalise, "model.normalise = true");
  add(c.conv_norm == ConvNorm::batchnorm, "model.conv_norm = \"batchnorm\"");
  return keys;
}

SpeechChunks::SpeechChunks(const FastConformerConfig& c)
    : frames(c.right_context + 1),
      past(c.left_context / frames * frames),
      overlap(divided_up(2 * (c.subsampling - 1) + divided_up(c.mel.fft / 2 + 1, c.mel.hop),
                         c.subsampling)),
      frame_samples(c.mel.hop * c.subsampling),
      ahead(std::max(c.mel.hop, c.mel.fft / 2)) {
  CHOIR_CHECK(keys_against_streaming(c).empty(), "a model that cannot stream: {}",
              keys_against_streaming(c).front());
}

}  // namespace choir
