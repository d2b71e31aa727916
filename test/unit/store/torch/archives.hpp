#pragma once
// Zip and tar archives for tests; headers may contain false values.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "test/unit/store/weights_fixture.hpp"

namespace choir::test {

/// Stored members in the format of torch.save: the sizes in local headers are zero.
class ZipBuilder {
 public:
  struct Member {
    std::string name, bytes;
    std::uint16_t method = 0, flags = 0x808;
    std::string local_name{};         ///< if it differs
    std::int64_t header_shift = 0;    ///< added to the offset in the directory
    std::int64_t claimed_bytes = -1;  ///< that of the directory, if it differs
    bool in64 = false;                ///< sizes in an extra field
  };
  void add(Member member) { members_.push_back(std::move(member)); }
  void add(const std::string& name, const std::string& bytes) { add(Member{name, bytes}); }

  std::string bytes(bool directory_in64 = false) const {
    std::string all, directory;
    for (const Member& m : members_) {
      const auto header = static_cast<std::int64_t>(all.size()) + m.header_shift;
      const std::string& local = m.local_name.empty() ? m.name : m.local_name;
      all += u32(0x04034b50) + u16(0) + u16(m.flags) + u16(m.method) + u32(0) + u32(0) + u32(0) +
             u32(0) + u16(local.size()) + u16(3) + local + "pad" + m.bytes;
      const auto size = m.claimed_bytes < 0 ? std::ssize(m.bytes) : m.claimed_bytes;
      const std::string extra =
          m.in64 ? u16(1) + u16(24) + u64(size) + u64(size) + u64(header) : std::string();
      const auto small = [&](std::int64_t n) { return m.in64 ? u32(0xffffffff) : u32(n); };
      directory += u32(0x02014b50) + u16(0) + u16(0) + u16(m.flags) + u16(m.method) + u32(0) +
                   u32(0) + small(size) + small(size) + u16(m.name.size()) + u16(extra.size()) +
                   u16(0) + u16(0) + u16(0) + u32(0) + small(header) + m.name + extra;
    }
    const auto at = std::ssize(all), count = std::ssize(members_);
    all += directory;
    const auto end64 = std::ssize(all);
    if (directory_in64)
      all += u32(0x06064b50) + u64(44) + u16(0) + u16(0) + u32(0) + u32(0) + u64(count) +
             u64(count) + u64(std::ssize(directory)) + u64(at) + u32(0x07064b50) + u32(0) +
             u64(end64) + u32(1);
    const bool in64 = directory_in64;
    return all + u32(0x06054b50) + u16(0) + u16(0) + u16(in64 ? 0xffff : count) +
           u16(in64 ? 0xffff : count) + u32(in64 ? 0xffffffff : std::ssize(directory)) +
           u32(in64 ? 0xffffffff : at) + u16(0);
  }

 private:
  static std::string u16(std::int64_t n) { return bytes_of(static_cast<std::uint16_t>(n)); }
  static std::string u16(std::size_t n) { return bytes_of(static_cast<std::uint16_t>(n)); }
  static std::string u16(int n) { return bytes_of(static_cast<std::uint16_t>(n)); }
  static std::string u32(std::int64_t n) { return bytes_of(static_cast<std::uint32_t>(n)); }
  static std::string u64(std::int64_t n) { return bytes_of(n); }
  std::vector<Member> members_;
};

/// One member of a tar archive: its header and its bytes, padded.
inline std::string tar_member(const std::string& name, const std::string& bytes, char type = '0',
                              std::int64_t claimed_bytes = -1) {
  std::string header(512, '\0');
  const auto put = [&](std::size_t at, const std::string& field) {
    header.replace(at, field.size(), field);
  };
  const auto octal = [](std::int64_t n, std::size_t digits) {
    std::string text;
    for (std::size_t i = 0; i < digits; ++i, n /= 8)
      text.insert(0, 1, static_cast<char>('0' + n % 8));
    return text;
  };
  put(0, name.substr(0, 100));
  put(124, octal(claimed_bytes < 0 ? std::ssize(bytes) : claimed_bytes, 11));
  header[156] = type;
  put(257, std::string("ustar\0"
                       "00",
                       8));
  put(148, std::string(8, ' '));
  std::int64_t sum = 0;
  for (const char c : header) sum += static_cast<unsigned char>(c);
  put(148, octal(sum, 6) + std::string("\0 ", 2));
  return header + bytes + std::string((512 - bytes.size() % 512) % 512, '\0');
}

}  // namespace choir::test
