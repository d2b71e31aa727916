#pragma once
// A trained codec for commands that create codes or sound; every rank holds it whole.
#include <memory>
#include <string>

#include "src/app/command_line.hpp"
#include "src/models/codec/codec_coder.hpp"
#include "src/run/loaded_model.hpp"

namespace choir {

struct CodecRunRequest {
  const FamilyTable& families;
  std::string checkpoint, precision, device = "auto";
  bool ema = false;
};
/// Adds the positional argument and its options.
void add_codec_run(CommandLine& app, CodecRunRequest& request);

class CodecRun {
 public:
  /// Throws DeckError for a checkpoint of another family. Collective.
  CodecRun(MpiSession& session, const CodecRunRequest& request);

  Communicator& world() { return place_.mesh->world(); }
  CodecCoder& coder() { return *coder_; }

 private:
  Workplace place_;
  LoadedModel loaded_;
  std::unique_ptr<CodecCoder> coder_;
};

}  // namespace choir
