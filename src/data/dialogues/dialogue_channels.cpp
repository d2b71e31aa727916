#include "src/data/dialogues/dialogue_channels.hpp"

#include <algorithm>
#include <cmath>

#include "choir/core/error.hpp"

namespace choir {

std::int64_t FrameClock::samples(double seconds) const {
  return static_cast<std::int64_t>(std::floor(seconds * sample_rate + 0.5));
}

void DialogueControls::check(std::int64_t vocab_size) const {
  if (pad == bos || pad == eos || bos == eos)
    throw DeckError(
        fmt::format("the tokens of padding, BOS and EOS are {}, {} and {}", pad, bos, eos),
        "they must differ: else every frame of silence begins or ends a turn");
  for (const std::int32_t id : {pad, bos, eos})
    if (id < 0 || id >= vocab_size)
      throw DeckError(fmt::format("token {} of padding, BOS or EOS is not in a vocabulary of {}",
                                  id, vocab_size));
}

TextChannel text_channel(std::span<const FrameTurn> turns, std::int64_t frames,
                         const DialogueControls& controls) {
  TextChannel channel;
  channel.tokens.assign(static_cast<std::size_t>(frames), controls.pad);
  for (std::size_t i = 0; i < turns.size(); ++i) {
    const FrameTurn& turn = turns[i];
    CHOIR_CHECK(turn.begin >= 0 && (i == 0 || turns[i - 1].begin <= turn.begin),
                "turn {} begins at frame {}", i, turn.begin);
    std::int64_t end = turn.end;
    if (i + 1 < turns.size()) end = std::min(end, turns[i + 1].begin - 1);
    const std::int64_t room =
        std::clamp<std::int64_t>(std::min(end, frames) - turn.begin, 0, std::ssize(turn.ids) + 1);
    const std::int64_t lost = std::ssize(turn.ids) - std::max<std::int64_t>(room - 1, 0);
    channel.cut += lost;
    if (lost > channel.worst_cut) {
      channel.worst_cut = lost;
      channel.worst = static_cast<std::int64_t>(i);
    }
    if (room == 0) continue;
    const auto at = channel.tokens.begin() + turn.begin;
    *at = controls.bos;
    std::copy_n(turn.ids.begin(), room - 1, at + 1);
    if (end < frames) channel.tokens[static_cast<std::size_t>(end)] = controls.eos;
  }
  return channel;
}

std::vector<FrameTurn> turns_of(std::span<const std::int32_t> channel,
                                const DialogueControls& controls) {
  std::vector<FrameTurn> turns;
  bool open = false;
  for (std::int64_t t = 0; t < std::ssize(channel); ++t) {
    const std::int32_t id = channel[static_cast<std::size_t>(t)];
    if (open && (id == controls.bos || id == controls.eos)) {
      turns.back().end = t;
      open = false;
    }
    if (id == controls.bos) {
      turns.push_back({.begin = t, .end = std::ssize(channel), .ids = {}});
      open = true;
    } else if (open && id != controls.pad) {
      turns.back().ids.push_back(id);
    }
  }
  return turns;
}

void fill_dialogue_rows(std::span<const std::int32_t> text, std::span<const std::uint16_t> codes,
                        const DialogueControls& controls, const CodeControls& code_controls,
                        const DialogueRows& to) {
  const std::size_t rows = to.text.size(), books = rows == 0 ? 0 : to.codes.size() / rows;
  const std::size_t steps = text.empty() ? 0 : text.size() - 1;
  CHOIR_CHECK(steps <= rows && codes.size() >= text.size() * books,
              "a dialogue of {} frames with {} codes in {} rows of {}", text.size(), codes.size(),
              rows, books);
  std::copy_n(text.begin(), steps, to.text.begin());
  std::copy_n(text.begin() + (steps > 0), steps, to.text_targets.begin());
  for (std::size_t t = 0; t < steps; ++t)
    for (std::size_t k = 0; k < books; ++k) {
      const std::size_t at = t * books + k;
      const std::int32_t said = text[t] == controls.bos   ? code_controls.bos
                                : text[t] == controls.eos ? code_controls.eos
                                                          : static_cast<std::int32_t>(codes[at]);
      to.codes[at] = t == 0 ? code_controls.delay : to.code_targets[at - books];
      to.code_targets[at] = said;
    }
  const auto end = [](auto span, std::size_t from, std::int32_t value) {
    std::fill(span.begin() + static_cast<std::ptrdiff_t>(from), span.end(), value);
  };
  end(to.text, steps, 0);
  end(to.text_targets, steps, kNoTarget);
  end(to.codes, steps * books, 0);
  end(to.code_targets, steps * books, kNoTarget);
}

}  // namespace choir
