#include "choir/models/salm/salm_answers.hpp"

#include <fmt/core.h>

#include <algorithm>

#include "choir/core/text.hpp"
#include "choir/data/audio/recording.hpp"
#include "choir/models/salm/salm_config.hpp"
#include "src/models/salm/salm_generator.hpp"

namespace choir {
namespace {

std::vector<std::uint16_t> samples_of(const std::string& path, const SalmConfig& config) {
  const FastConformerConfig& encoder = config.encoder;
  const std::int64_t most_rows = config.lm.block_size;
  RecordingSource source;
  source.path = path;
  source.channel.value = ChannelChoice::kAverage;
  Recording recording = Recording::open(source, static_cast<int>(encoder.mel.sample_rate));
  const std::int64_t rows = config.clip_rows().rows(recording.samples());
  if (rows < 1)
    throw DataError(
        fmt::format("'{}' is {:.3f} seconds long, shorter than one frame of the encoder", path,
                    recording.seconds()),
        fmt::format("a frame is {:.2f} seconds", encoder.seconds_per_frame()));
  if (rows > most_rows)
    throw DeckError(fmt::format("'{}' is {:.1f} seconds long: {} rows, but the model has {} "
                                "positions",
                                path, recording.seconds(), rows, most_rows),
                    fmt::format("at most {:.1f} seconds fit, including prompt and answer",
                                static_cast<double>(most_rows * config.adapter.stack) *
                                    encoder.seconds_per_frame()));
  const auto pcm = recording.read(0, recording.samples());
  return {pcm.begin(), pcm.end()};
}

}  // namespace

HeardPrompt read_prompt(const ModelConfig& model, const std::string& vocabulary,
                        const std::string& source, const std::string& text,
                        const std::vector<std::string>& clips) {
  const auto& config = model.as<SalmConfig>();
  const std::int64_t block = config.lm.block_size;
  HeardPrompt prompt;
  const ChatForm form = ChatForm::from_json(vocabulary, source);
  OpenedTokenizer opened = open_chat_tokenizer(form, source);
  prompt.end_ = end_of_turn(opened.chat, *opened.tokenizer);
  Conversation conversation{
      .place = "--prompt", .id = {}, .turns = {{.role = "user", .text = text}}};
  prompt.ids_ = encode_conversation(conversation, {.chat = opened.chat, .system = form.system},
                                    *opened.tokenizer)
                    .ids;
  prompt.tokenizer_ = std::move(opened.tokenizer);
  prompt.rows_ = std::ssize(prompt.ids_) - std::ssize(clips);
  for (const std::string& path : clips) {
    prompt.clips_.push_back(samples_of(path, config));
    const std::int64_t samples = std::ssize(prompt.clips_.back());
    prompt.longest_ = std::max(prompt.longest_, samples);
    prompt.rows_ += config.clip_rows().rows(samples);
  }
  prompt.longest_ = config.encoder.speech_frames().padded(prompt.longest_);
  if (prompt.rows_ == 0) throw DeckError("the prompt is empty", "give --audio or --prompt");
  if (prompt.rows_ > block)
    throw DeckError(
        fmt::format("the prompt has {} tokens and rows of clips, but the model has {} positions",
                    prompt.rows_, block),
        "shorten the text or the clips");
  return prompt;
}

BatchShape HeardPrompt::shape() const {
  return {.samples = 1,
          .tokens = rows_,
          .audio_samples = longest_,
          .clips = std::max<std::int64_t>(std::ssize(clips_), 1)};
}

std::string HeardPrompt::answer(ModelInstance& instance, std::int64_t tokens,
                                const TokenChoice& choice,
                                const std::function<void(const std::string&)>& on_piece) const {
  SalmPrompt prompt{.ids = ids_, .clips = {clips_.begin(), clips_.end()}};
  TokenChoice chosen = choice;
  chosen.stop = {end_};
  // Word pieces are decoded differently at the front of a text, so a piece is the growth of the
  // text.
  std::vector<std::int32_t> so_far;
  std::string shown;
  const auto decoded = [&](std::vector<std::int32_t> ids) {
    std::erase_if(ids, [&](std::int32_t id) { return id >= tokenizer_->vocab_size(); });
    return tokenizer_->decode(std::move(ids));
  };
  const auto made =
      SalmGenerator(instance).answer({&prompt, 1}, tokens, chosen, 1, [&](std::int32_t token) {
        if (!on_piece) return;
        so_far.push_back(token);
        const std::string text = decoded(so_far);
        if (text.size() > shown.size()) on_piece(text.substr(shown.size()));
        shown = text;
      });
  return std::string(trim(decoded(made.front())));
}

}  // namespace choir
