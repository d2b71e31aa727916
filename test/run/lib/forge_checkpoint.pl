#!/usr/bin/perl
# Changes a checkpoint as an attacker would: afterwards all of its checksums are right.
#
#   forge_checkpoint.pl FOLDER nan NAME I...     elements of a tensor of fp32 become NaN
#   forge_checkpoint.pl FOLDER scramble          HDF5's own bytes, all but the text, become nonsense
#   forge_checkpoint.pl FOLDER old               the manifest lacks the position of the text, as in older programs
#   forge_checkpoint.pl FOLDER replace FROM TO   in the text of the manifest, on one line
use strict; use warnings;
my ($folder, $what, @words) = @ARGV;

my @table = map { my $c = $_; $c = $c & 1 ? ($c >> 1) ^ 0x82f63b78 : $c >> 1 for 1 .. 8; $c } 0 .. 255;
sub crc {
  my $crc = 0xffffffff;
  $crc = ($crc >> 8) ^ $table[($crc ^ $_) & 255] for unpack "C*", $_[0];
  return sprintf "%08x", $crc ^ 0xffffffff;
}
sub contents { open my $file, "<:raw", $_[0] or die "$_[0]: $!"; local $/; return <$file> }
sub write_out { open my $file, ">:raw", $_[0] or die "$_[0]: $!"; print $file $_[1]; close $file or die $! }

my $state = contents("$folder/state.h5");
my $all = contents("$folder/manifest.json");
$all =~ s/\n *//g; $all =~ s/": /":/g;
my ($body) = $all =~ /"manifest":(.*)\}$/ or die "no manifest";
my $tensor = qr/\{"bytes":(\d+),"crc32c":"([0-9a-f]{8})","dtype":"(\w+)","name":"([^"]*)","offset":(\d+),/;

my (%at, @own);
my $reached = 0;
my @found;
while ($body =~ /$tensor/g) { push @found, [$5, $1, $4] }
for (sort { $a->[0] <=> $b->[0] } grep { $_->[1] > 0 } @found) {
  $at{$_->[2]} = $_->[0];
  push @own, [$reached, $_->[0] - $reached]; $reached = $_->[0] + $_->[1];
}
push @own, [$reached, length($state) - $reached];
my ($text) = $state =~ /meta\0.{12}([^\0]*)\0/s or die "no text";
my $text_at = $-[1];

if ($what eq "nan") {
  my $name = shift @words;
  substr($state, $at{$name} + 4 * $_, 4) = pack("V", 0x7fc00000) for @words;
} elsif ($what eq "scramble") {
  substr($state, $_->[0], $_->[1]) = "Z" x $_->[1] for @own;
  substr($state, $text_at, length $text) = $text;
} elsif ($what eq "old") {
  $body =~ s/"meta":\{[^}]*\},//;
} elsif ($what eq "replace") {
  my $begin = index $body, $words[0];
  die "no $words[0]" if $begin < 0;
  substr($body, $begin, length $words[0]) = $words[1];
}

$body =~ s/$tensor/my $crc = crc(substr $state, $5, $1); qq({"bytes":$1,"crc32c":"$crc","dtype":"$3","name":"$4","offset":$5,)/ge;
my $whole = crc($state);
my $structure = crc(join "", map { substr $state, $_->[0], $_->[1] } @own);
my $of_text = crc($text);
$body =~ s/("files":\[\{"bytes":\d+,"crc32c":")[0-9a-f]{8}/$1$whole/;
$body =~ s/("structure_crc32c":")[0-9a-f]{8}/$1$structure/;
$body =~ s/("meta":\{"bytes":\d+,"crc32c":")[0-9a-f]{8}/$1$of_text/;
write_out("$folder/state.h5", $state);
write_out("$folder/manifest.json", sprintf qq({"crc32c":"%s","manifest":%s}), crc($body), $body);
