#pragma once
// CRC-32C (Castagnoli, polynomial 0x1EDC6F41 reflected) as in iSCSI (RFC 3720): crc32c("123456789")
// = 0xE3069283. The SSE4.2 instruction is used if the CPU has it. And CRC-32 of zip archives
// (polynomial 0x04C11DB7 reflected): crc32("123456789") = 0xCBF43926.

#include <cstddef>
#include <cstdint>

namespace choir {

/// Continues `crc` (0 at the beginning) over `bytes` bytes.
std::uint32_t crc32c(const void* data, std::size_t bytes, std::uint32_t crc = 0);

/// CRC of the concatenation A+B from crc(A), crc(B) and the length of B, so that ranks can checksum
/// their slabs of one file independently.
std::uint32_t crc32c_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b);

/// The same for the polynomial of zip archives, from a table.
std::uint32_t crc32(const void* data, std::size_t bytes, std::uint32_t crc = 0);
std::uint32_t crc32_combine(std::uint32_t crc_a, std::uint32_t crc_b, std::uint64_t bytes_b);

}  // namespace choir
