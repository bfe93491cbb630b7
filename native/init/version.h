#pragma once

#define PROGRAM_VERSION	 "0.1.0"
#define PROTOCOL_VERSION 2
