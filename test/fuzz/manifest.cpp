// Fuzzes manifests: NeMo's lines and Lhotse's cuts ('t': trimmed to supervisions), plain; 'g':
// bytes that may be gzip; 's': a Shar folder; 'r': manifests of `choir transcribe`.
#include "src/data/audio/audio_manifest.hpp"
#include "src/data/audio/transcripts.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {
namespace {

constexpr const char* kNemo =
    R"({"audio_filepath": "a.wav", "duration": 1.5, "text": "one two", "offset": 0.25, "lang": "en"}
{"audio_filepath": "b.wav", "duration": 2, "text": "", "shard_id": 0, "_skipme": true, "more": [1]}
)";
constexpr const char* kCut =
    R"({"id": "c-1", "start": 0.5, "duration": 2.0, "channel": 0, "type": "MonoCut", )"
    R"("supervisions": [{"id": "s", "start": 0.1, "duration": 1.0, "text": "hi", )"
    R"("language": "en", "speaker": "x"}], "recording": {"id": "r", )"
    R"("sources": [{"type": "file", "channels": [0], "source": "r.wav"}], )"
    R"("sampling_rate": 16000, "num_samples": 48000, "duration": 3.0}})";

void try_transcripts(const std::string& path) {
  for (const TranscriptRequest& request : read_transcript_manifest(path, {})) {
    Transcript transcript;
    transcript.text = "heard";
    const std::string line = transcript_line(request, transcript);
    require(line.find('\n') == std::string::npos, "a transcript of several lines");
  }
}

void try_manifest(const std::string& path, bool trim) {
  const AudioManifest manifest =
      read_audio_manifests({path}, {.trim_to_supervisions = trim, .tars = {}});
  for (const AudioEntry& entry : manifest.entries) {
    require(entry.duration > 0 && entry.offset >= 0, "an utterance out of time");
    require(!entry.path.empty(), "an utterance without audio");
    require(entry.line(1.5).find('\n') == std::string::npos, "a line of several lines");
  }
}

}  // namespace

std::vector<std::string> seeds() {
  return {std::string("n") + kNemo, std::string("t") + kCut, std::string("n") + kCut,
          std::string("s") + kCut, std::string("r") + kNemo,
          // One letter, compressed by gzip.
          std::string("g\x1f\x8b\x08\0\0\0\0\0\0\xff\x4b\x04\0\x43\xbe\xb7\xe8\x01\0\0\0", 22),
          R"(n{"audio_filepath": "../../x.wav", "duration": 1e300, "text": "\u00e9\ud83d\ude00"})"};
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  const std::string_view bytes = input.substr(1);
  if (kind == 's') {
    put("shar/recording.000000.tar", "");
    put("shar/cuts.000000.jsonl", bytes);
    accepted([&] { try_manifest(scratch() + "/shar", false); });
    return;
  }
  const std::string path = put("manifest.json", bytes);
  accepted([&] {
    if (kind == 'r')
      try_transcripts(path);
    else
      try_manifest(path, kind == 't');
  });
}

}  // namespace choir::fuzz
