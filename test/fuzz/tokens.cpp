// Fuzzes token files. The first byte: 'n' a native file, 'c' the same with a corrected checksum of
// its header, 'm' a Megatron pair (index, then "\n--\n", then tokens), any other byte raw tokens.
#include "src/core/hash.hpp"
#include "src/data/text/token_file.hpp"
#include "src/data/text/token_stream.hpp"
#include "test/fuzz/fuzz.hpp"

namespace choir::fuzz {

std::vector<std::string> seeds() {
  const std::vector<std::int32_t> tokens{1, 2, 3, 500, 4, 5};
  std::vector<std::string> all;
  for (const std::int64_t vocabulary : {501, 70000}) {
    TokenFileWriter writer(scratch() + "/seed.tok", vocabulary, 7);
    writer.append(tokens);
    writer.finish();
    all.push_back("n" + read_bytes(scratch() + "/seed.tok"));
    all.push_back("c" + all.back().substr(1));
  }
  std::string index("MMIDIDX\0\0", 9);
  index += bytes_of(std::uint64_t{1}) + '\x08' + bytes_of(std::uint64_t{2}) +
           bytes_of(std::uint64_t{1}) + bytes_of(std::int32_t{3}) + bytes_of(std::int32_t{2}) +
           bytes_of(std::int64_t{0}) + bytes_of(std::int64_t{6}) + bytes_of(std::int64_t{0});
  all.push_back("m" + index + "\n--\n" + std::string(10, '\1'));
  all.push_back("r" + std::string(64, '\2'));
  return all;
}

void try_input(std::string_view input) {
  if (input.empty()) return;
  const char kind = input.front();
  std::string bytes(input.substr(1)), path;
  if (kind == 'c' && bytes.size() >= static_cast<std::size_t>(kTokenFileHeaderBytes)) {
    const std::uint32_t crc = crc32c(bytes.data(), 60);
    std::memcpy(bytes.data() + 60, &crc, sizeof crc);
  }
  std::filesystem::remove(scratch() + "/a.idx");
  if (kind == 'm') {
    std::string_view rest = bytes;
    put("a.idx", cut(rest, "\n--\n"));
    path = put("a.bin", rest);
  } else {
    path = put(kind == 'n' || kind == 'c' ? "a.tok" : "a.bin", bytes);
  }
  accepted([&] {
    const TokenStream stream = TokenStream::open({path}, TokenFormat::automatic, Split::train);
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(stream.count()));
    stream.read(0, stream.count(), tokens.data());
    const TokenStream again = TokenStream::deserialise(stream.serialise());
    require(again.count() == stream.count(), "a stream that changes on its way");
    stream.verify(0, 512);
  });
}

}  // namespace choir::fuzz
