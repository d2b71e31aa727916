# shellcheck shell=bash disable=SC2154  # ranks is of lib/place.sh
# A laptop, a workstation, a container: one machine without a batch system.
site_environment() { launch_environment "$ranks"; }
site_line() { here_line "$1"; }  # site_line RANKS PER_NODE THREADS
site_scratch() { :; }
