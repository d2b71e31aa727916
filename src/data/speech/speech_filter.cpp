#include "choir/data/speech/speech_filter.hpp"

#include <limits>

#include "choir/core/clock.hpp"
#include "choir/core/error.hpp"
#include "choir/core/plural.hpp"

namespace choir {
namespace {

constexpr LeftOut kReasons[] = {LeftOut::too_short,     LeftOut::too_long, LeftOut::few_labels,
                                LeftOut::many_labels,   LeftOut::damaged,  LeftOut::bad_text,
                                LeftOut::ctc_impossible};
static_assert(std::size(kReasons) == kLeftOutReasons);

bool is_bad(LeftOut reason) {
  return reason == LeftOut::damaged || reason == LeftOut::bad_text ||
         reason == LeftOut::ctc_impossible;
}

}  // namespace

std::string_view name_of(LeftOut reason) {
  switch (reason) {
    case LeftOut::too_short:
      return "shorter than data.min_duration or a frame";
    case LeftOut::too_long:
      return "longer than data.max_duration";
    case LeftOut::few_labels:
      return "fewer labels a second than data.min_labels_per_second";
    case LeftOut::many_labels:
      return "more labels a second than data.max_labels_per_second";
    case LeftOut::damaged:
      return "damaged: the samples do not match their checksum";
    case LeftOut::bad_text:
      return "text with characters outside the vocabulary";
    case LeftOut::ctc_impossible:
      return "CTC is impossible: fewer frames than the labels need";
  }
  return "?";
}

std::int64_t ctc_frames(std::span<const std::int32_t> labels) {
  auto needed = static_cast<std::int64_t>(labels.size());
  for (std::size_t i = 1; i < labels.size(); ++i) needed += labels[i] == labels[i - 1] ? 1 : 0;
  return needed;
}

SpeechSift::SpeechSift(const SpeechFilter& filter, const SpeechFrames& frames, bool validation)
    : filter_(filter), frames_(frames), validation_(validation) {}

void SpeechSift::leave_out(LeftOut reason, const AudioCatalog& catalog, std::int64_t i,
                           const std::string& detail) {
  Count& count = counts_[static_cast<std::size_t>(reason)];
  if (count.utterances++ == 0)
    count.first = fmt::format("utterance {} of '{}'{}", i, catalog.folder(), detail);
  count.seconds += static_cast<double>(catalog[i].samples) / catalog.sample_rate();
}

bool SpeechSift::judge(const AudioCatalog& catalog, const LabelFile& labels, std::int64_t i,
                       bool damaged) {
  const std::int64_t samples = catalog[i].samples;
  const double seconds = static_cast<double>(samples) / catalog.sample_rate();
  const auto out = [&](LeftOut reason, const std::string& detail = {}) {
    leave_out(reason, catalog, i, detail);
    return false;
  };
  if (seconds < filter_.min_duration || frames_.frames(samples) == 0)
    return out(LeftOut::too_short, fmt::format(", {:.3f} s", seconds));
  const bool countable = samples <= std::numeric_limits<std::int32_t>::max();  // lengths are i32
  if (!countable || (filter_.max_duration > 0 && seconds > filter_.max_duration))
    return out(LeftOut::too_long, fmt::format(", {:.2f} s", seconds));
  if (damaged) return out(LeftOut::damaged);
  if (labels.bad(i)) return out(LeftOut::bad_text);
  const auto ids = labels[i];
  const double rate = static_cast<double>(ids.size()) / seconds;
  if (rate < filter_.min_labels_per_second)
    return out(LeftOut::few_labels, fmt::format(", {:.2f} a second", rate));
  if (filter_.max_labels_per_second > 0 && rate > filter_.max_labels_per_second)
    return out(LeftOut::many_labels, fmt::format(", {:.2f} a second", rate));
  if (!filter_.ctc) return true;
  const std::int64_t needed = ctc_frames(ids);
  for (int stages = 1; stages < std::ssize(impossible_); ++stages)
    impossible_[static_cast<std::size_t>(stages)] += needed > frames_.after(stages, samples);
  if (needed <= frames_.frames(samples)) return true;
  leave_out(LeftOut::ctc_impossible, catalog, i,
            fmt::format(", {:.2f} s: {} labels with {} repeats, {} frames", seconds, ids.size(),
                        needed - std::ssize(ids), frames_.frames(samples)));
  return validation_;
}

void SpeechSift::add(int leaf, const AudioCatalog& catalog, const LabelFile& labels,
                     std::span<const std::int32_t> damaged, std::vector<SpeechItem>& kept) {
  CHOIR_CHECK(
      labels.size() == catalog.size() && (damaged.empty() || std::ssize(damaged) == labels.size()),
      "{} labels of {} utterances", labels.size(), catalog.size());
  for (std::int64_t i = 0; i < catalog.size(); ++i) {
    ++total_;
    const bool broken = !damaged.empty() && damaged[static_cast<std::size_t>(i)] != 0;
    if (!judge(catalog, labels, i, broken)) continue;
    ++kept_;
    seconds_ += static_cast<double>(catalog[i].samples) / catalog.sample_rate();
    kept.push_back({leaf, static_cast<std::int32_t>(i),
                    static_cast<std::int32_t>(catalog[i].samples),
                    static_cast<std::int32_t>(labels[i].size())});
  }
}

std::int64_t SpeechSift::bad() const {
  std::int64_t sum = 0;
  for (const LeftOut reason : kReasons)
    if (is_bad(reason) && !(validation_ && reason == LeftOut::ctc_impossible)) sum += count(reason);
  return sum;
}

std::string SpeechSift::bad_ones() const {
  std::string text;
  for (const LeftOut reason : kReasons) {
    if (!is_bad(reason) || count(reason) == 0) continue;
    text += fmt::format("{}{} {} (first: {})", text.empty() ? "" : "; ", count(reason),
                        name_of(reason), counts_[static_cast<std::size_t>(reason)].first);
  }
  return text;
}

std::string SpeechSift::cure() const {
  std::string text;
  for (int stages = frames_.stages - 1; stages >= 1; --stages)
    text += fmt::format("{} with model.subsampling {}, ",
                        format_count(impossible_[static_cast<std::size_t>(stages)]), 1 << stages);
  return text.empty() ? "use larger units (a SentencePiece vocabulary)"
                      : text + "or larger units (a SentencePiece vocabulary)";
}

void SpeechSift::require(OnBad on_bad, double cap, const std::string& what) const {
  if (kept_ == 0)
    throw DataError(fmt::format("none of the {} of {} is left:\n{}", counted(total_, "utterance"),
                                what, to_string()),
                    "loosen the filters, or prepare other data");
  const std::int64_t b = bad();
  if (b == 0) return;
  const double share = static_cast<double>(b) / static_cast<double>(total_);
  if (on_bad == OnBad::skip && share <= cap) return;
  std::string hint =
      on_bad == OnBad::stop
          ? fmt::format("data.on_bad=skip leaves out up to {:g} % of them", 100 * cap)
          : "repair the data, or leave such utterances out of it";
  if (count(LeftOut::ctc_impossible) > 0) hint += "; CTC impossible for: " + cure();
  throw DataError(fmt::format("{} of the {} utterances of {} are bad{}: {}", format_count(b),
                              format_count(total_), what,
                              on_bad == OnBad::skip ? fmt::format(", {:.2f} %, more than {:g} %",
                                                                  100 * share, 100 * cap)
                                                    : "",
                              bad_ones()),
                  hint);
}

std::string SpeechSift::to_string() const {
  std::string text = fmt::format("{} of {}, {:.2f} hours", format_count(kept_),
                                 counted(total_, "utterance"), hours());
  for (const LeftOut reason : kReasons) {
    const Count& c = counts_[static_cast<std::size_t>(reason)];
    if (c.utterances == 0) continue;
    const bool kept = validation_ && reason == LeftOut::ctc_impossible;
    text += fmt::format("\n{} {} ({:.2f} hours): {}; first {}", kept ? "counted" : "left out",
                        format_count(c.utterances), c.seconds / 3600, name_of(reason), c.first);
  }
  if (count(LeftOut::ctc_impossible) > 0) text += "\nCTC impossible for: " + cure();
  return text;
}

}  // namespace choir
