/*
 * What a program inside the branch may ask for, as frames between it and init;
 * no I/O. Each connection carries one request and one answer.
 */
#pragma once

#include "frame.h"

#define ASK_VERB_MAX	 16
#define ASK_ARGUMENT_MAX 64
/* Length of a request: its kind and two strings. */
#define ASK_FRAME_MAX	 (1 + 4 + ASK_VERB_MAX + 4 + ASK_ARGUMENT_MAX)
#define ANSWER_TEXT_MAX	 4096
#define ANSWER_FRAME_MAX (1 + 1 + 4 + ANSWER_TEXT_MAX)

enum ask_kind {
	ASK_REQUEST = 0x01, /* str verb; str argument */
	ASK_ANSWER = 0x81,  /* u8 status; str text */
};

struct ask {
	struct bytes verb;
	struct bytes argument;
};

/* 0, or -EBADMSG. The strings lie in the frame. */
int ask_parse(struct frame *frame, struct ask *ask);
/* NULL if a host may be asked this, or else what is wrong with it. */
const char *ask_refusal(const struct ask *ask);
