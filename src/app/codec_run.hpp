#pragma once
// A trained codec, as commands use it that make codes or sound: whole on every rank.
#include <memory>
#include <string>

#include "choir/models/codec/codec_coder.hpp"
#include "src/app/session.hpp"

namespace choir {

struct CodecRunRequest {
  std::string checkpoint, precision, device = "auto";
};
/// The positional argument and its options.
void add_codec_run(CommandLine& app, CodecRunRequest& request);

class CodecRun {
 public:
  /// Collective. DeckError for a checkpoint of another family.
  CodecRun(MpiSession& session, const CodecRunRequest& request);

  Communicator& world() { return place_.mesh->world(); }
  CodecCoder& coder() { return *coder_; }

 private:
  Workplace place_;
  LoadedModel loaded_;
  std::unique_ptr<CodecCoder> coder_;
};

}  // namespace choir
